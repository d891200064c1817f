#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run Ansible on the head Spark itself, as people do who have no other computer, and kill it in the middle of a change.

Two nodes on one cable. spark1 is reached with ``connection: local``, spark2 over ssh. Shown are: site.yml to the
answer, a second run without a change, and a change of the fabric whose controller is killed before the confirmation,
which both machines take back by themselves.
"""

from __future__ import annotations

import io
import json
import pathlib
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import yaml

HOME = "/home/dgx/sparks"
PYTHON = "/opt/sparkmatrix/python/bin/python3.11"
# What ansible-playbook needs, of the environment that runs this script.
PACKAGES = (
    "_cffi_backend.*",
    "_yaml",
    "ansible",
    "cffi",
    "cryptography",
    "jinja2",
    "jmespath",
    "markupsafe",
    "netaddr",
    "packaging",
    "resolvelib",
    "yaml",
)
LIMIT_S = 60  # fabric_rollback_seconds of the change that is killed; the least that there is
STATUS = "sudo /usr/local/lib/sparkmatrix/sparkmatrix-node fabric-status"


def carry(files: Mapping[str, str]) -> None:
    """This checkout, Ansible, the key to log in with and ``files`` below .lab, to the head."""
    tree = io.BytesIO()
    site = next(pathlib.Path(path) for path in sys.path if path.endswith("site-packages"))
    with tarfile.open(fileobj=tree, mode="w", dereference=False) as tar:
        listing = ["git", "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=cluster.ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.splitlines():
            if (cluster.ROOT / name).is_symlink() or (cluster.ROOT / name).exists():
                tar.add(cluster.ROOT / name, f"sparks/{name}", recursive=False)
        for name in PACKAGES:
            for found in [*site.glob(name), *site.glob(f"{name}[-_]*.dist-info")]:
                tar.add(found, f"sparks/.venv/{found.name}")
        tar.add(cluster.STATE / "ssh/id_ed25519", "sparks/.lab/ssh/id_ed25519")
        tar.add(cluster.STATE / "ssh/known_hosts", "sparks/.lab/ssh/known_hosts")
        for name, text in files.items():
            entry = tarfile.TarInfo(f"sparks/.lab/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    run = ["ssh", "-F", str(cluster.STATE / "ssh_config"), cluster.HEAD, "tar -C /home/dgx -xf - --no-same-owner"]
    done = subprocess.run(run, input=tree.getvalue(), capture_output=True, check=False)
    if done.returncode:
        raise cluster.LabError(f"The checkout cannot be copied to {cluster.HEAD}: {done.stderr.decode()}")


def overlay() -> dict[str, str]:
    """The overlay of this lab as the head needs it: itself without ssh, the other one with the key that it carries."""
    hosts = yaml.safe_load((cluster.STATE / "overlay/hosts.yml").read_text())
    sparks = hosts["all"]["children"]["sparks"]["hosts"]
    for name, variables in sparks.items():
        variables.pop("ansible_control_path_dir", None)
        if name == cluster.HEAD:
            variables["ansible_connection"] = "local"
        variables["ansible_ssh_private_key_file"] = f"{HOME}/.lab/ssh/id_ed25519"
        variables["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={HOME}/.lab/ssh/known_hosts"
    settings = (cluster.STATE / "overlay/group_vars/sparks.yml").read_text().replace(str(cluster.ROOT), HOME)
    return {"overlay/hosts.yml": yaml.safe_dump(hosts), "overlay/group_vars/sparks.yml": settings}


def playbook(name: str, *options: str) -> list[str]:
    """The command on the head."""
    words = [PYTHON, "-m", "ansible", "playbook", name, "-i", "inventories/2spark", "-i", ".lab/overlay", *options]
    variables = f"PYTHONPATH={HOME}/.venv ANSIBLE_NOCOLOR=1 LC_ALL=C.UTF-8"
    # Not world-readable, or Ansible would ignore ansible.cfg.
    command = f"umask 022; cd {HOME} && chmod go-w . && {variables} {shlex.join(words)}"
    return ["ssh", "-F", str(cluster.STATE / "ssh_config"), cluster.HEAD, command]


def play(title: str, name: str, *options: str) -> tuple[str, float]:
    cluster.say(f"-- {title}")
    started = time.monotonic()
    done = subprocess.run(playbook(name, *options), capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    (cluster.STATE / "head-controller.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise cluster.LabError(f"{title}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")
    cluster.say(f"   {seconds:.0f} s")
    return done.stdout, seconds


def changes(output: str) -> list[str]:
    """Steps of a run that changed something, as its user sees them."""
    assert output.splitlines()[-1].startswith("Done in ")
    lines = [line for line in output.splitlines() if line.startswith("  changed  ")]
    return [line for line in lines if line.split() != ["changed", "nothing"]]  # of the summary


def kill_in_the_middle() -> float:
    """Change the MTU of both machines and kill the controller during the pings; seconds until all is back."""
    cluster.say("-- Kill the controller in the middle of a change")
    before = [status(host) for host in ("spark1", "spark2")]
    changed = {"fabric_mtu": 4200, "fabric_rollback_seconds": LIMIT_S}
    command = playbook("playbooks/fabric.yml", "-e", json.dumps(changed))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if "TASK [sparkmatrix.cluster.fabric : verify" in line:
            break
    else:
        raise cluster.LabError(f"The change ended before its pings:\n{seen[-3000:]}")
    killed = time.monotonic()
    cluster.ssh(cluster.HEAD, "pkill -KILL -f 'ansible playbook'")
    process.kill()
    during = [status(host) for host in ("spark1", "spark2")]
    if any("MTU 4200" not in text or "pending: nothing" in text for text in during):
        raise cluster.LabError(f"The change was not pending on both machines: {during}")
    while [status(host) for host in ("spark1", "spark2")] != before:
        if time.monotonic() - killed > LIMIT_S + 20:
            raise cluster.LabError(f"Not taken back {LIMIT_S + 20} s later: {status('spark1')} {status('spark2')}")
        time.sleep(0.5)
    seconds = time.monotonic() - killed
    cluster.say(f"   back after {seconds:.0f} s")
    return seconds


def status(host: str) -> str:
    return cluster.ssh(host, STATUS).stdout


def main() -> int:
    try:
        cluster.build()
        cluster.boot("direct", 2)
        carry(overlay())
        _output, first_s = play("site.yml from the head", "site.yml")
        output, second_s = play("site.yml again", "site.yml")
        if changes(output):
            raise cluster.LabError(f"The second run changed something: {changes(output)}")
        back_s = kill_in_the_middle()
        output, _seconds = play("The layer fabric as before", "playbooks/fabric.yml")
        if changes(output):
            raise cluster.LabError(f"Something was left of the change that was taken back: {changes(output)}")
    except cluster.LabError as exc:
        print(f"FAILED: {exc}")
        return 1
    finally:
        cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    print(json.dumps({"first_run_s": round(first_s), "second_run_s": round(second_s), "back_s": round(back_s, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
