#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/awx.yml against AWX's API in memory, the context of the execution environment, and playbooks as AWX starts
them: ansible-runner and ansible-core alone, as another user, with a copy of the project without .git that this user
cannot write, an inventory script, AWX's environment and extra variables that are not templated.

Needs an index of packages and no lab. ``--lab`` is one more job instead: site.yml on two nodes, to an answer.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/lab")]

import cluster
import demo
import yaml
from unit import awx_api

ANSIBLE = pathlib.Path(sys.executable).parent / "ansible-playbook"
SETTINGS = {
    "awx_image": "registry.example.com/sparkmatrix-ee",
    "awx_project_url": "https://git.example.com/cluster.git",
    "awx_inventory_file": "inventories/mine/hosts.yml",
    "awx_known_hosts": "known_hosts",
    "awx_notifications": ["https://hooks.example.com/x"],
}
RUNNER = 64999  # a user who owns nothing else
# `env`, because what setpriv itself starts may still lie where only root can read.
BECOME = ["setpriv", f"--reuid={RUNNER}", f"--regid={RUNNER}", "--clear-groups", "env"]
OTHER_USER = BECOME if os.geteuid() == 0 else []
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "mutants")
HOST_KEYS = "known_hosts"  # in the project, as awx_known_hosts names it
# What AWX 24.6.1 gives a job: its variables (awx_meta_vars) and its environment (build_env of a job).
META = {"job_id": 7, "job_launch_type": "manual", "job_template_id": 3, "job_template_name": "Sparks: Bring up"}
HOSTS = {
    "sparks": {"hosts": ["spark1", "spark2"], "vars": {"ansible_user": "nvidia"}},
    "_meta": {
        "hostvars": {
            f"spark{number}": {
                "ansible_host": f"192.0.2.{number}",  # TEST-NET-1: nobody answers
                "spark_rank": number - 1,
                "remote_tower_enabled": "true",
            }
            for number in (1, 2)
        }
    },
}


class FailedError(Exception):
    """The text says what was expected."""


def expect(what: str, condition: bool, said: str) -> None:
    if not condition:
        raise FailedError(f"{what}:\n{said[-3000:]}")
    print(f"   {what}", flush=True)


def output(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    given = {**environment, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def refuse_without_settings() -> None:
    """Nobody answers at port 1."""
    given = {**os.environ, "CONTROLLER_HOST": "http://127.0.0.1:1", "SPARKMATRIX_LOG_FOLDER": "none"}
    code, said = output([str(ANSIBLE), "playbooks/awx.yml"], given)
    unset = "awx_image, awx_project_url and awx_inventory_file: not set"
    told = unset in said and "AWX: not reached" in said and "export CONTROLLER_HOST" in said
    expect("without settings and AWX it says what is needed", code != 0 and told, said)


def set_up_awx() -> None:
    playbooks = tuple(f"playbooks/{path.name}" for path in ROOT.glob("playbooks/*.yml"))
    api = awx_api.Api(playbooks=playbooks)
    # Somebody else's, whose name begins like ours.
    api.create("inventories", {"name": "Sparks", "organization": api.named("organizations", "Default")["id"]})
    empty = {resource: len(found) for resource, found in api.objects.items()}

    def run(name: str, *options: str) -> tuple[str, int]:
        before, began = len(api.calls), time.monotonic()
        words = ["playbooks/awx.yml", "-e", json.dumps(SETTINGS), *options]
        variables = {"CONTROLLER_HOST": url, "CONTROLLER_OAUTH_TOKEN": awx_api.TOKEN}
        given = {**os.environ, **variables, "ANSIBLE_STDOUT_CALLBACK": "default", "SPARKMATRIX_LOG_FOLDER": "none"}
        code, said = output([str(ANSIBLE), *words], given)
        print(f"-- {name}: {len(api.calls) - before} calls, {time.monotonic() - began:.0f} s", flush=True)
        expect(f"{name} succeeds", code == 0, said)
        found = re.search(r"changed=(\d+)", said)
        return said, int(found[1]) if found else -1

    with awx_api.serve(api) as url:
        said, changed = run("a check of a first run", "--check")
        expect("it would make templates", changed == 1 and "job template Sparks: Bring up" in said, said)
        expect("and makes nothing", {r: len(found) for r, found in api.objects.items()} == empty, said)
        said, changed = run("a first run")
        expect("it makes everything", changed > 5 and len(api.objects["job_templates"]) >= 25, said)
        said, changed = run("a second run")
        expect("it changes nothing", changed == 0, said)
        api.named("job_templates", "Sparks: Bring up")["allow_simultaneous"] = True
        _said, changed = run("a run after drift")
        expect("it mends one template", changed == 1, _said)
        said, _changed = run("a removal", "-e", "awx_state=absent")
        expect(
            "nothing is left but what others made", {r: len(found) for r, found in api.objects.items()} == empty, said
        )


def install(folder: pathlib.Path) -> pathlib.Path:
    """The programs of requirements/awx-py311.txt, for everybody on this machine: another user cannot run a Python that
    lies in root's home."""
    oldest = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    found = [
        python
        for python in (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3")
        if output([*OTHER_USER, python, "-c", oldest], dict(os.environ))[0] == 0
    ]
    expect("a Python of at least 3.11 with ensurepip can be run by another user", bool(found), "apt: python3-venv")
    began = time.monotonic()
    pip = [str(folder / "tools/bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    for command in ([found[0], "-m", "venv", str(folder / "tools")], [*pip, "-r", "requirements/awx-py311.txt"]):
        code, said = output(command, dict(os.environ))
        expect(" ".join(command[1:4]), code == 0, said)
    print(f"-- tools of AWX: {time.monotonic() - began:.0f} s", flush=True)
    return folder / "tools/bin"


def make_context(folder: pathlib.Path, tools: pathlib.Path) -> None:
    """What an image of the execution environment would be built from."""
    context = folder / "context"
    words = ["create", "--file", "execution-environment.yml", "--context", str(context)]
    code, said = output([str(tools / "ansible-builder"), *words], dict(os.environ))
    expect("the context of the execution environment is made", code == 0, said)
    given = {
        "_build/requirements.yml": "collections/requirements.yml",
        "_build/requirements.txt": "requirements.txt",
        "_build/bindep.txt": "bindep.txt",
    }
    for made, source in given.items():
        there = (context / made).read_text()
        expect(f"it has {source}", there.split() == (ROOT / source).read_text().split(), there)
    files = {str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()}
    more = {name for name in files - {"Containerfile", *given} if not name.startswith("_build/scripts/")}
    expect("and nothing more than the builder's own scripts", not more, str(more))
    text = (context / "Containerfile").read_text()
    wanted = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["dependencies"]
    refs = f"{wanted['ansible_core']['package_pip']} {wanted['ansible_runner']['package_pip']}"
    expect("ansible-core and ansible-runner are as asked for", f'ARG ANSIBLE_INSTALL_REFS="{refs}"' in text, text)
    users = re.findall(r"(?m)^USER (\S+)", text)
    expect("it runs as an unprivileged user", users[-1] not in ("root", "0"), str(users))


class Jobs:
    """Starts playbooks with ansible-runner on a private directory as AWX makes it."""

    def __init__(
        self, folder: pathlib.Path, tools: pathlib.Path, hosts: dict[str, Any], key: str, host_keys: str
    ) -> None:
        self.tools, self.private, self.started = tools, folder / "private", 0
        project = self.private / "project"
        shutil.copytree(ROOT, project, symlinks=True, ignore=LEFT_OUT)
        if host_keys:
            (project / HOST_KEYS).write_text(host_keys)
        for path in (project, *project.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o555 if path.is_dir() else 0o444)
        for name in ("inventory", "env", "home", "cp", "artifacts"):
            (self.private / name).mkdir()
        script = self.private / "inventory/hosts"
        script.write_text(f"#!/usr/bin/env python3\nprint({json.dumps(hosts)!r})\n")
        script.chmod(0o755)
        if key:
            (self.private / "env/ssh_key").write_text(key)
            (self.private / "env/ssh_key").chmod(0o400)
        self.become: list[str] = []
        if OTHER_USER:
            # The entry point of an execution environment gives its user a name and a home, too.
            names = folder / "passwd"
            entry = f"runner:x:{RUNNER}:{RUNNER}::{self.private}/home:/bin/sh\n"
            names.write_text(pathlib.Path("/etc/passwd").read_text() + entry)
            own = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"', str(names)]
            self.become = [*own, *OTHER_USER]
            for path in (self.private, *self.private.rglob("*")):
                if project not in (path, *path.parents):
                    os.chown(path, RUNNER, RUNNER)

    def start(
        self, name: str, playbook: str, *options: str, stored_facts: bool = False, **answers: Any
    ) -> tuple[int, str, dict[str, Any]]:
        """Exit code, output, and what the job leaves to the next."""
        self.started += 1
        meta = {f"{prefix}_{key}": value for prefix in ("awx", "tower") for key, value in META.items()}
        # As AWX writes them: what a survey says is never a template.
        (self.private / "env/extravars").write_text(
            "".join(
                f"{key}: {'!unsafe ' if isinstance(value, str) else ''}{json.dumps(value)}\n"
                for key, value in {**meta, **answers}.items()
            )
        )
        environment = {
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_RETRY_FILES_ENABLED": "False",
            "ANSIBLE_COLLECTIONS_PATH": f"{self.private}/requirements_collections:./collections:~/.ansible/collections",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.private / "cp"),
            "JOB_ID": str(META["job_id"]),
        }
        (self.private / "env/envvars").write_text(json.dumps(environment))
        of_the_container = {
            "PATH": f"{self.tools}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.private / "home"),
            "LANG": "C.UTF-8",
        }
        ident = str(self.started)
        job = {
            "private_data_dir": str(self.private),
            "playbook": playbook,
            "ident": ident,
            "cmdline": shlex.join(["-u", "root", *options]),
            # AWX says so at every job, as ansible-runner itself would store facts.
            "fact_cache_type": "jsonfile" if stored_facts else "",
        }
        program = "import ansible_runner, json, sys; sys.exit(ansible_runner.run(**json.loads(sys.argv[1])).rc)"
        command = [str(self.tools / "python"), "-c", program, json.dumps(job)]
        began = time.monotonic()
        code, said = output([*self.become, *command], of_the_container)
        print(f"-- job: {name}, {time.monotonic() - began:.0f} s", flush=True)
        left: dict[str, Any] = {}
        for path in (self.private / "artifacts" / ident / "job_events").glob("*.json"):
            event = json.loads(path.read_text())
            if event["event"] == "playbook_on_stats":
                left = event["event_data"].get("artifact_data", {}).get("sparkmatrix", {})
        return code, said, left


def start_jobs(jobs: Jobs) -> None:
    code, said, _left = jobs.start("Plan", "playbooks/plan.yml", engine_recipe="qwen3-8b", engine_context="4096")
    expect("it plans from the answers of the survey", code == 0 and "qwen3-8b" in said and "4096" in said, said)
    expect("no escape sequence is in the log", "\x1b" not in said, said)
    code, said, _left = jobs.start(
        "Plan with a template as answer", "playbooks/plan.yml", engine_recipe="{{ lookup('pipe', 'id') }}"
    )
    expect("it stays text", code != 0 and "uid=" not in said, said)
    code, said, _left = jobs.start("Check the machines, which are off", "playbooks/preflight.yml")
    expect("it names them", code != 0 and "spark2: the machine could not be read" in said, said)
    expect("it warns of host keys", "AWX checks no host key" in said, said)
    code, said, _left = jobs.start(
        "Bring up, sliced", "playbooks/site.yml", awx_workflow_job_name=str(META["job_template_name"])
    )
    expect("it is refused", code != 0 and "its jobs are sliced" in said, said)
    code, said, _left = jobs.start("Bring up with stored facts", "playbooks/site.yml", stored_facts=True)
    expect("it is refused", code != 0 and "fact storage is on" in said, said)
    code, said, _left = jobs.start("Bring up with a limit", "playbooks/site.yml", "--limit", "spark1")
    expect("it is refused", code != 0 and "spark2: left out by --limit" in said, said)
    code, said, _left = jobs.start(
        "Batch script", "playbooks/sbatch.yml", "--check", "--diff", engine_recipe="qwen3-8b", fabric_cages=[0]
    )
    expect("its check shows it, and writes nothing", code == 0 and "#SBATCH" in said, said)


def bring_up(folder: pathlib.Path, tools: pathlib.Path) -> None:
    """site.yml on two nodes, as AWX would: the addresses from its inventory, the key from a credential."""
    words = [str(ANSIBLE.with_name("ansible-inventory")), "-i", "inventories/2spark", "-i", cluster.OVERLAY]
    done = subprocess.run([*words, "--list", "--export"], cwd=ROOT, capture_output=True, text=True, check=True)
    hosts = json.loads(done.stdout.replace(f"{ROOT}/", ""))  # what lies in the project is named from its root
    for known in hosts["_meta"]["hostvars"].values():
        for name in ("ansible_ssh_private_key_file", "ansible_ssh_common_args", "ansible_control_path_dir"):
            del known[name]
        known["remote_tower_enabled"] = "true"
    key = (cluster.STATE / "ssh/id_ed25519").read_text()
    jobs = Jobs(folder, tools, hosts, key, (cluster.STATE / "ssh/known_hosts").read_text())
    checked: dict[str, Any] = {
        "ansible_host_key_checking": True,
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={jobs.private}/project/{HOST_KEYS}",
    }
    code, said, left = jobs.start("Bring up", "site.yml", **checked)
    print(json.dumps(left), flush=True)
    expect("it succeeds", code == 0, said)
    expect("two nodes are set up", left["nodes"] == 2 and not left["failed"] and bool(left["changed"]), str(left))
    (service,) = left["services"]
    measured = service["tokens_per_s"] > 0 and service["verdict"] in ("ok", "slow")
    expect(
        "the model, its tokens/s and the verdict are artifacts",
        service["model"] == "tiny-llama" and measured,
        str(left),
    )
    answer = demo.ask()
    expect("the URL in them answers", left["url"] == answer["endpoint"], f"{left} {answer}")
    artifacts = [path for path in (jobs.private / "artifacts").rglob("*") if path.is_file()]
    secret = key.splitlines()[1]
    expect("no file of the job has the key", not any(secret in path.read_text() for path in artifacts), "")


def main() -> int:
    in_lab = "--lab" in sys.argv[1:]
    try:
        with tempfile.TemporaryDirectory(prefix="sparkmatrix-awx-") as made:
            folder = pathlib.Path(made)
            folder.chmod(0o755)
            tools = install(folder)
            if in_lab:
                cluster.build()
                cluster.boot("direct", 2)
                bring_up(folder, tools)
            else:
                make_context(folder, tools)
                start_jobs(Jobs(folder, tools, HOSTS, "", ""))
                refuse_without_settings()
                set_up_awx()
    except (FailedError, cluster.LabError) as exc:
        print(f"FAILED: {exc}", flush=True)
        return 1
    finally:
        if in_lab:
            cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
