#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/awx.yml against AWX's API in memory, and playbooks as a job of AWX starts them. Needs no lab.

A job: a copy of the project without .git that cannot be written, also not by root, an inventory script, AWX's
environment and extra variables that are not templated.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from unit import awx_api

ANSIBLE = pathlib.Path(sys.executable).parent / "ansible-playbook"
SETTINGS = {
    "awx_image": "registry.example.com/sparkmatrix-ee",
    "awx_project_url": "https://git.example.com/cluster.git",
    "awx_inventory_file": "inventories/mine/hosts.yml",
    "awx_known_hosts": "known_hosts",
    "awx_webhook": "https://hooks.example.com/x",
}
# root, whom permissions stop. Another user could not run a Python that lies in root's home.
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "mutants")
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


def play(words: list[str], environment: dict[str, str], folder: pathlib.Path = ROOT) -> tuple[int, str]:
    weak = POWERLESS if folder != ROOT and os.geteuid() == 0 else []
    given = {**os.environ, "ANSIBLE_NOCOLOR": "1", "SPARKMATRIX_LOG_FOLDER": "none", **environment}
    command = [*weak, str(ANSIBLE), *words]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def expect(what: str, condition: bool, said: str) -> None:
    if not condition:
        raise FailedError(f"{what}:\n{said[-3000:]}")
    print(f"   {what}", flush=True)


def set_up_awx() -> None:
    playbooks = tuple(f"playbooks/{path.name}" for path in ROOT.glob("playbooks/*.yml"))
    api = awx_api.Api(playbooks=playbooks)
    empty = {resource: len(found) for resource, found in api.objects.items()}

    def run(name: str, *options: str) -> tuple[str, int]:
        before, began = len(api.calls), time.monotonic()
        words = ["playbooks/awx.yml", "-e", json.dumps(SETTINGS), *options]
        variables = {"CONTROLLER_HOST": url, "CONTROLLER_OAUTH_TOKEN": awx_api.TOKEN}
        code, said = play(words, {**variables, "ANSIBLE_STDOUT_CALLBACK": "default"})
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
        expect("nothing is left", {r: len(found) for r, found in api.objects.items()} == empty, said)


def start_jobs(folder: pathlib.Path) -> None:
    project, private = folder / "project", folder / "private"
    shutil.copytree(ROOT, project, symlinks=True, ignore=LEFT_OUT)
    for path in (project, *project.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    (private / "tmp").mkdir(parents=True)
    script = private / "hosts"
    script.write_text(f"#!/usr/bin/env python3\nprint({json.dumps(HOSTS)!r})\n")
    script.chmod(0o755)
    for path in (folder, private, private / "tmp"):
        path.chmod(0o755)
    (private / "tmp").chmod(0o777)

    def job(name: str, playbook: str, *options: str, **more: str) -> tuple[int, str]:
        meta = {f"{prefix}_{key}": value for prefix in ("awx", "tower") for key, value in META.items()}
        answers = {key: value for key, value in more.items() if key.islower()}
        variables = private / "extravars"
        # As ansible-runner writes them: what a survey says is never a template.
        variables.write_text(
            "".join(f"{key}: !unsafe {json.dumps(str(value))}\n" for key, value in {**meta, **answers}.items())
        )
        environment = {
            "HOME": str(private / "tmp"),
            "ANSIBLE_LOCAL_TEMP": str(private / "tmp/ansible"),
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_RETRY_FILES_ENABLED": "False",
            "ANSIBLE_COLLECTIONS_PATH": f"{folder}/requirements_collections:./collections:~/.ansible/collections",
            "ANSIBLE_STDOUT_CALLBACK": "default",
            "JOB_ID": "7",
            **{key: value for key, value in more.items() if key.isupper()},
        }
        words = [playbook, "-i", str(script), "-u", "root", "-e", f"@{variables}", *options]
        code, said = play(words, environment, project)
        print(f"-- job: {name}", flush=True)
        return code, said

    code, said = job("Plan", "playbooks/plan.yml", engine_recipe="qwen3-8b", engine_context="4096")
    expect("it plans from the answers of the survey", code == 0 and "qwen3-8b" in said and "4096" in said, said)
    expect("no escape sequence is in the log", "\x1b" not in said, said)
    code, said = job("Plan with a template as answer", "playbooks/plan.yml", engine_recipe="{{ lookup('pipe', 'id') }}")
    expect("it stays text", code != 0 and "uid=" not in said, said)
    code, said = job("Check the machines, which are off", "playbooks/preflight.yml")
    expect("it names them", code != 0 and "spark2: the machine could not be read" in said, said)
    expect("it warns of host keys", "AWX checks no host key" in said, said)
    code, said = job("Bring up, sliced", "playbooks/site.yml", awx_workflow_job_name=str(META["job_template_name"]))
    expect("it is refused", code != 0 and "its jobs are sliced" in said, said)
    code, said = job("Bring up with stored facts", "playbooks/site.yml", ANSIBLE_CACHE_PLUGIN="jsonfile",
                     ANSIBLE_CACHE_PLUGIN_CONNECTION=str(private / "tmp/facts"))  # fmt: skip
    expect("it is refused", code != 0 and "fact storage is on" in said, said)
    code, said = job("Bring up with a limit", "playbooks/site.yml", "--limit", "spark1")
    expect("it is refused", code != 0 and "spark2: left out by --limit" in said, said)
    code, said = job("Batch script", "playbooks/sbatch.yml", "--check", "--diff", engine_recipe="qwen3-8b")
    expect("its check shows it, and writes nothing", code == 0 and "#SBATCH" in said, said)


def main() -> int:
    try:
        set_up_awx()
        with tempfile.TemporaryDirectory(prefix="sparkmatrix-awx-") as folder:
            start_jobs(pathlib.Path(folder))
    except FailedError as exc:
        print(f"FAILED: {exc}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
