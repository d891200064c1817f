#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The archive for whoever is to help, and the commands of every day on the head, beside a cluster that serves.

Usage: test_support.py [--beside ID] [--keep] [--only STEP[,STEP]]

Secrets of every kind are planted where the collection looks: none may be in the archive, nor in the logs on the head.
All real ones of the nodes are looked for as well. Then without one of the two machines. Prints one JSON line.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError, run_steps
from test_doctor import WRITTEN
from test_staying_up import HEAD, WORKER, Cluster

PLAYBOOK = "playbooks/support.yml"
OPTIONS = ("-e", json.dumps({"gateway_listen": ["127.0.0.1"]}))
PLACE = cluster.STATE / "support"
LOGS = PLACE / "logs"  # of this computer
MAX_S = 60.0  # of a run of the playbook with two nodes
LOGIN, DESK = "dgx", "walrus-den"  # the account of the nodes; what a machine is called in its own journal
HELLO = "sudo systemd-run -q --wait --collect --unit=sparkmatrix-gateway-hello echo hello-from-there"
RUNNING = "sparkmatrix[^ ]* (logs|top)|journalctl .*-o json"  # what may not be left

# Words that look like nothing: only the place where they stand says that they are secrets.
PLAIN = {
    "/root/.cache/huggingface/token": "plainly-the-cached-token",
    "/root/.netrc": "machine nvcr.example login me\npassword=plainly-of-netrc",
    "/root/.docker/config.json": '{"auths": {"nvcr.example": {"auth": "plainlyOfTheRegistry"}}}',
    "/etc/sparkmatrix/engine-planted.env": 'MY_SECRET="plainly-of-the-user"\nHF_TOKEN_PATH="/srv/planted-token"',
    "/srv/planted-token": "plainly-the-token-elsewhere",
    "/etc/sparkmatrix/gateway/keys/planted.key": "plainly-of-a-client",
}
WORDS = (
    *("plainly-the-cached-token", "plainly-of-netrc", "plainlyOfTheRegistry", "plainly-of-the-user"),
    *("plainly-the-token-elsewhere", "plainly-of-a-client"),
)
# Others tell what they are by their own look, or by what stands before them. The first word is what may be nowhere.
LOOKS = (
    ("hf_PlantedAbCdEf0123456789xyz", "downloading with {}"),
    ("ghp_PlantedAbCdEf0123456789xyz", "clone failed for {}"),
    ("nvapi-PlantedAbCdEf0123456789", "docker login with {}"),
    ("eyJPlantedhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl", "cookie was {}"),
    ("sk-Planted0123456789ABCDEFG", "client showed {}"),
    ("planted-of-a-header", "Authorization: Bearer {}"),
    ("cGxhbnRlZDpiYXNpYw", "> Authorization: Basic {}=="),
    ("planted-in-a-url", "fetching https://me:{}@host.example/file"),
    ("planted-in-a-query", "GET /v1/x?api_key={}&n=1"),
    ("planted-as-option", "started with --api-key {}"),
    ("planted-as-variable", "AWS_SECRET_ACCESS_KEY={}"),
    ("planted-in-json", '{{"password": "{}", "n": 1}}'),
    ("planted-in-yaml", "  wifi_password: {}"),
    ("PlantedKeyBytesOfSomebody", "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----"),
    ("Planted3xQ9vT2kLm8Rz5Wp1Yc7Nb4Hd6Jf0Gs", "and at random {}"),
)
VARIABLE = "plainly-of-a-variable"  # that a user gives to the run
PLANTED = [*WORDS, *(word for word, _text in LOOKS), VARIABLE]
# All secrets that are really on a node, a line each; of keys in PEM the lines between the frame.
REAL = (
    "sudo sh -c 'cat /etc/sparkmatrix/*.token /etc/sparkmatrix/*key*.env /etc/sparkmatrix/gateway/keys/*"
    " /etc/sparkmatrix/gateway/*.key /etc/sparkmatrix/gateway/*/*.key /run/sparkmatrix-gateway/tls.key"
    " /etc/sparkmatrix/ssh/id_* /etc/ssh/ssh_host_*_key 2>/dev/null' | grep -v -e ----- -e '^ssh-'; true"
)
# Into the journal of a unit and of our own programs, and into a file of Ray's. Nothing of it is in a command line.
PLANT = """
umask 077
python3 - <<'END'
import json, os, pathlib
for name, text in json.loads({files!r}).items():
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + chr(10))
END
cat > /run/planted
chmod 644 /run/planted
systemd-run --quiet --wait --collect --unit=sparkmatrix-gateway-planted cat /run/planted
logger -t sparkmatrix-node -p user.err -f /run/planted
logs=/var/lib/sparkmatrix/home/ray/session_latest/logs
runuser -u sparkmatrix -- cp /run/planted $logs/planted.log
rm /run/planted
"""
RAY_LOG = "var/lib/sparkmatrix/home/ray/session_latest/logs/planted.log"


class Here(Cluster):
    @cached_property
    def real(self) -> set[str]:
        """What is secret on the nodes."""
        lines = [line.strip() for host in self.launch.hosts for line in self.node(host, REAL).splitlines()]
        found = {line.partition("=")[2].strip('"') if '="' in line else line for line in lines if len(line) > 11}
        if len(found) < 20:
            raise LabError(f"only {len(found)} secrets were found on the nodes")
        return found

    def root(self, host: str, script: str, data: str = "") -> str:
        return self.node(host, f"sudo sh -ec {shlex.quote(script)}", data=data.encode())

    def command(self, words: str, host: str = HEAD, sudo: str = "sudo ") -> tuple[int, str, float]:
        """Exit code, both outputs together, and seconds."""
        began = time.monotonic()
        said = self.node(host, f'{sudo}sparkmatrix {words} 2>&1; echo "=$?"', 120)
        text, _, code = said.rstrip("\n").rpartition("=")
        return int(code), text, time.monotonic() - began

    def expect(self, words: str, code: int, *said: str, host: str = HEAD, sudo: str = "sudo ") -> tuple[str, float]:
        found, text, seconds = self.command(words, host, sudo)
        missing = [word for word in said if word not in text]
        if found != code or missing:
            raise LabError(
                f"sparkmatrix {words} on {host}: {found}, expected {code}; without {missing}:\n{text[-1500:]}"
            )
        return text, round(seconds, 1)

    def left(self) -> dict[str, str]:
        """What still runs of a command that was ended."""
        look = f"pgrep -af {shlex.quote(RUNNING)} | grep -v pgrep; true"
        found = {host: self.node(host, look).strip() for host in self.launch.hosts}
        return {host: text for host, text in found.items() if text}

    def until_nothing_is_left(self) -> float:
        began = time.monotonic()
        while found := self.left():
            if time.monotonic() - began > 15:
                raise LabError(f"still running: {found}")
            time.sleep(0.5)
        return round(time.monotonic() - began, 1)

    def watch(self, words: str, terminal: bool) -> subprocess.Popen[bytes]:
        way = ["ssh", *(["-tt"] if terminal else []), "-F", str(self.state / "ssh_config"), HEAD]
        return subprocess.Popen(
            [*way, f"sudo sparkmatrix {words}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def collect(self, name: str, *more: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Files of the archive, and what it took."""
        file = PLACE / f"{name}.tar.gz"
        secret = PLACE / "variables.json"
        secret.write_text(json.dumps({"my_own_token": VARIABLE}))
        done = self.site(f"support-{name}", PLAYBOOK, "-e", f"doctor_support_file={file}", "-e", f"@{secret}", *more)
        if stat.S_IMODE(file.stat().st_mode) != 0o600:
            raise LabError(f"{file} may be read by others")
        with tarfile.open(file) as archive:
            found = {
                entry.name.partition("/")[2]: reader.read().decode()
                for entry in archive
                if (reader := archive.extractfile(entry)) is not None
            }
        figures = {"seconds": round(done.seconds, 1), "kb": file.stat().st_size // 1000, "files": len(found)}
        return found, {**figures, "text_kb": sum(map(len, found.values())) // 1000}


def forms(word: str) -> set[str]:
    """As it is, and as it may stand in JSON, in a URL, in base64."""
    return {word, json.dumps(word)[1:-1], quote(word, safe=""), base64.b64encode(word.encode()).decode().rstrip("=")}


def none_of(words: Iterable[str], files: Mapping[str, str], what: str) -> int:
    """How many were looked for; none may be there."""
    found = {
        name: [word for word in words if any(form in text or form in name for form in forms(word))]
        for name, text in files.items()
    }
    wrong = {name: some[:3] for name, some in found.items() if some}
    if wrong:
        raise LabError(f"{what} in the archive: {json.dumps(wrong)[:1500]}")
    return len(list(words))


def set_up(here: Here) -> dict[str, Any]:
    """A cluster that serves, with Ray and gateway."""
    return {"seconds": round(here.site("support-site", "site.yml", *OPTIONS).seconds)}


def plant(here: Here) -> dict[str, Any]:
    """Secrets of every kind on each node, and in the logs of this computer."""
    looks = "\n".join(text.format(word) for word, text in LOOKS).replace("\\n", "\n") + "\n"
    text = looks + "".join(f"begin {form} end\n" for word in WORDS for form in sorted(forms(word)))
    here.root(WORKER, f"hostname {DESK}")
    for host in here.launch.hosts:
        here.root(host, PLANT.format(files=json.dumps(PLAIN)), text)
    here.root(WORKER, f"hostname {WORKER}")
    # What is secret on a node, this computer does not know; only what it looks like, and its own variables.
    (LOGS / "20990101-000000-1-planted.log").write_text(f"{looks}begin {VARIABLE} end\n")
    return {"planted": len(PLANTED), "real": len(here.real)}


def looked(here: Here) -> dict[str, Any]:
    """With --check it says what would be in it, and writes nothing."""
    file = PLACE / "check.tar.gz"
    done = here.site("support-check", PLAYBOOK, "-e", f"doctor_support_file={file}", "--check")
    said = " ".join(cluster.log_tail("support-check", 200).split())
    if file.exists() or "a check, so it was not written" not in said:
        raise LabError(f"a check: {file.exists()}\n{cluster.log_tail('support-check')}")
    return {"seconds": round(done.seconds, 1)}


def whole(here: Here) -> dict[str, Any]:
    """The archive: everything is in it but secrets, no machine was changed, and nobody noticed."""
    units = "systemctl show -P InvocationID sparkmatrix-engine sparkmatrix-keeper sparkmatrix-ray sparkmatrix-gateway"
    here.serving()
    before = [here.node(host, units) for host in here.launch.hosts]
    for host in here.launch.hosts:
        here.node(host, "sudo touch /run/doctor-began")
    files, took = here.collect("whole")
    if [here.node(host, units) for host in here.launch.hosts] != before or not here.status()["serving"]:
        raise LabError("something was started anew beside it")
    written = {host: here.node(host, WRITTEN).split() for host in here.launch.hosts}
    if any(written.values()):
        raise LabError(f"it wrote {written}")
    looked_for = none_of(PLANTED, files, "planted secrets") + none_of(here.real, files, "secrets of the nodes")
    wanted = {f"{host}/tools/{name}.txt" for host in here.launch.hosts for name in ("journal_ray", "units", "ip_addr")}
    wanted |= {f"{HEAD}/tools/{name}.txt" for name in ("status", "journal_keeper", "journal_engine", "journal_gateway")}
    wanted |= {f"{host}/{RAY_LOG}" for host in here.launch.hosts}
    wanted |= {f"{HEAD}/etc/sparkmatrix/engine.json", "contents.json", "controller/logs/20990101-000000-1-planted.log"}
    missing = {name for name in wanted if not files.get(name, "").strip()}
    if missing or "it serves" not in files[f"{HEAD}/tools/status.txt"]:
        raise LabError(f"not in the archive: {missing}, of {sorted(files)}")
    # What stood around the secrets is still there.
    for name in (*(f"{host}/{RAY_LOG}" for host in here.launch.hosts), f"{WORKER}/tools/journal_gateway.txt"):
        kept = files[name].count("begin (left out) end")
        if kept < len(WORDS):
            raise LabError(f"{name}: {kept} of {len(WORDS)} lines:\n{files[name][:1500]}")
    if took["seconds"] > MAX_S:
        raise LabError(f"it took {took['seconds']} s, expected {MAX_S:.0f} at most")
    return {**took, "secrets_looked_for": looked_for, "found": 0}


def anonymous(here: Here) -> dict[str, Any]:
    """The same without addresses, names and identities."""
    files, took = here.collect("anonymous", "-e", "doctor_support_anonymous=true")
    none_of(PLANTED, files, "planted secrets")
    none_of(here.real, files, "secrets of the nodes")
    own: set[str] = set()
    for host in here.launch.hosts:
        links = json.loads(here.node(host, "ip -j addr"))
        own |= {link["address"] for link in links if link["link_type"] == "ether"}
        own |= {address["local"] for link in links for address in link["addr_info"] if link["ifname"] != "lo"}
        own |= set(here.node(host, "cat /etc/machine-id /proc/sys/kernel/random/boot_id").split())
    own |= {DESK, f"/home/{LOGIN}"}
    looked_for = none_of(sorted(own), files, "whose machines these are")
    numbered = sorted({name.partition("/")[0] for name in files})
    return {**took, "looked_for": looked_for, "names": numbered}


def status(here: Here) -> dict[str, Any]:
    """It serves: exit code 0; elsewhere and without root it says what to do."""
    text, seconds = here.expect("status", 0, "it serves", HEAD, WORKER, "2 of 2 nodes", "it answers", "verified")
    found = json.loads(here.expect("status --json", 0)[0])
    if not found["serving"] or not all(node["answers"] for node in found["nodes"]) or not found["is_head"]:
        raise LabError(f"status --json: {json.dumps(found)[:1500]}")
    if "\x1b" in text:
        raise LabError("colours without a terminal")
    here.expect("status --here --json", 0, '"serving": true')
    here.expect("status", 1, "ask there", host=WORKER)
    here.expect("status", 1, "sudo sparkmatrix status", sudo="")
    here.expect("status --no-such", 2, "unrecognized arguments")
    return {"seconds": seconds}


def probe(here: Here) -> dict[str, Any]:
    """Real tokens."""
    _text, seconds = here.expect("probe", 0, "tokens/s")
    found = json.loads(here.expect("probe --json", 0)[0])
    if not found["ok"] or not found["completion_tokens"]:
        raise LabError(f"probe --json: {found}")
    here.expect("probe", 1, "The engine gives no answer", sudo="")
    return {"seconds": seconds}


def logs(here: Here) -> dict[str, Any]:
    """Of all nodes by time, without secrets, narrowed, and of Ray's files."""
    text, seconds = here.expect(
        "logs --lines 30000", 0, f"{HEAD} keeper: ", f"{WORKER} ray: ", f"{WORKER} gateway-planted: "
    )
    _text, ray_s = here.expect(
        "logs --ray --part ray --lines 30000", 0, f"{WORKER} ray/planted.log: ", f"{HEAD} ray/raylet"
    )
    for name, said in (("logs", text), ("logs --ray", _text)):
        none_of(PLANTED, {name: said}, "planted secrets")
        none_of(here.real, {name: said}, "secrets of the nodes")
    times = [match[0] for match in re.finditer(r"^\d\d-\d\d \d\d:\d\d:\d\d", text, re.MULTILINE)]
    if times != sorted(times) or len(times) < 50:
        raise LabError(f"{len(times)} lines, not by time")
    told = [json.loads(line) for line in here.expect(f"logs --node {WORKER} --part ray --json", 0)[0].splitlines()]
    if not told or {(one["host"], one["unit"]) for one in told} != {(WORKER, "ray")}:
        raise LabError(f"logs of one node: {told[:3]}")
    here.expect("logs --node spark9", 1, "there is no node spark9", f"{HEAD}, {WORKER}")
    here.expect("logs --part nothing", 2, "invalid choice")
    here.expect("logs", 1, "sudo sparkmatrix logs", sudo="")
    return {"seconds": seconds, "with_ray_s": ray_s, "lines": len(times)}


def follow(here: Here) -> dict[str, Any]:
    """What happens on the other node is shown; Ctrl-C, and a window that is closed, leave nothing running."""
    result: dict[str, Any] = {}
    for terminal in (True, False):
        watcher = here.watch("logs --follow --lines 3", terminal)
        assert watcher.stdout is not None and watcher.stdin is not None
        os.set_blocking(watcher.stdout.fileno(), False)
        said, began = b"", time.monotonic()
        while b"hello-from-there" not in said:
            if time.monotonic() - began > 30:
                raise LabError(f"nothing of the other node within 30 s: {said[-1500:]!r}")
            here.node(WORKER, HELLO)
            time.sleep(1)
            said += watcher.stdout.read() or b""
        if not here.left().get(WORKER):
            raise LabError("it is not seen on the other node, so its end would not be, either")
        if terminal:
            watcher.stdin.write(b"\x03")
            watcher.stdin.flush()
            code = watcher.wait(20)
            if code or b"Traceback" in said + (watcher.stdout.read() or b""):
                raise LabError(f"Ctrl-C: {code}, {said[-1500:]!r}")
        else:
            watcher.kill()  # as when the window is closed, or the connection lost
            watcher.wait()
        result["ctrl_c_s" if terminal else "closed_s"] = here.until_nothing_is_left()
    return result


def top(here: Here) -> dict[str, Any]:
    """One frame where nobody watches; live at a terminal, until Ctrl-C."""
    text, seconds = here.expect("top", 0, f"{HEAD} ", f"{WORKER} ", "memory ", "load ", "tokens/s", "Gb/s")
    if "\x1b" in text or text.count("memory ") != 2:
        raise LabError(f"one frame: {text!r}")
    found = json.loads(here.expect("top --json", 0)[0])
    nodes = found["nodes"]
    wrong = [
        host for host in here.launch.hosts if len(nodes[host]["halves"]) < 2 or not nodes[host]["memory_total_gib"]
    ]
    if found["schema"] != 1 or list(nodes) != here.launch.hosts or wrong or list(nodes[HEAD]["services"]) != ["engine"]:
        raise LabError(f"top --json: {found}")
    one = json.loads(here.expect(f"top --json --node {WORKER}", 0)[0])
    if list(one["nodes"]) != [WORKER]:
        raise LabError(f"top of one node: {one}")
    here.expect("top", 1, "sudo sparkmatrix top", sudo="")
    watcher = here.watch("top", True)
    time.sleep(12)
    assert watcher.stdin is not None and watcher.stdout is not None
    watcher.stdin.write(b"\x03")
    watcher.stdin.flush()
    said = watcher.stdout.read()
    frames = said.count(b"\x1b[H\x1b[J")
    if watcher.wait(20) or frames < 2 or b"Traceback" in said:
        raise LabError(f"live: {watcher.returncode}, {frames} frames, {said[-1500:]!r}")
    return {"seconds": seconds, "frames": frames, "ended_s": here.until_nothing_is_left()}


def silent(here: Here) -> dict[str, Any]:
    """A machine without power is named, by the archive and by every command; the other one is shown all the same."""
    here.lab("stop", WORKER)
    result: dict[str, Any] = {}
    for words, said in (("status", "not known"), ("logs", "its logs are not known"), ("top", "not known")):
        _text, result[f"{words}_s"] = here.expect(words, 1, HEAD, WORKER, said)
    files, took = here.collect("silent")
    named = [line for line in files["contents.txt"].splitlines() if line.startswith(f"{WORKER}: nothing, ")]
    if not named or not files.get(f"{HEAD}/tools/status.txt") or any(name.startswith(f"{WORKER}/") for name in files):
        raise LabError(f"the archive: {files['contents.txt'][:1500]}")
    none_of(here.real, files, "secrets of the nodes")
    return {**result, **took}


STEPS: dict[str, Callable[[Here], dict[str, Any]]] = {
    one.__name__: one for one in (set_up, plant, looked, whole, anonymous, status, probe, logs, follow, top, silent)
}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    os.environ["SPARKMATRIX_LOG_FOLDER"] = str(LOGS)
    return run_steps("support", Here(chosen.beside, "ray"), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
