#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From machines that only know a password to an answer, with the command `sparkmatrix`, as a new owner types it.

Lab nodes as Sparks are delivered: names like spark-1a2b, an account with a password and sudo by it, no key
anywhere. The owner: a shell in a terminal, an empty home, the wheel of this checkout in a new environment, and nothing
else of the checkout. ssh takes ~/.ssh from the list of users, so the shell has a mount namespace where that is the
empty home's; keys and known hosts of this machine stay as they are. mDNS: the owner's `avahi-browse` is the one of
spark1, as in test_first_login.py.

What a node of the lab lacks (a GPU that computes, unlimited memory locks, weights to download) is told with `-e @FILE`
at the end of a line: finding the machines and bringing them in knows nothing of it.

Usage: test_one_line.py [--all [--only STEPS]] [--beside ID]. Prints keystrokes, questions and seconds. One machine;
`--all`: two, every verb, another model, refusals, and Ctrl-C in the middle.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import pexpect
import yaml
from cluster import ROOT, LabError, say
from test_first_login import ACCOUNT, HOSTS, MAKE, TOOL, FirstLogin

NAMES = {"spark1": "spark-1a2b", "spark2": "spark-3c4d"}
MODEL, OTHER = "tiny-llama-one", "tiny-llama-two"
# GB10, 128 GB and aarch64, as a Spark tells them; the rest of nvidia-smi is not there. podman holds the name's file.
SPARK = f"""
set -eu
printf '#!/bin/sh\\ncase "$*" in *query-gpu=name*) echo NVIDIA GB10 ;; *) exit 9 ;; esac\\n' > {TOOL}
chmod 755 {TOOL}
sed -E 's/^(MemTotal|MemFree|MemAvailable):.*/\\1: 125513696 kB/' /proc/meminfo > /run/meminfo
mount --bind /run/meminfo /proc/meminfo
for site in /usr/lib/python3.1?/sitecustomize.py; do
  printf 'import os\\nreal = os.uname()\\nos.uname = lambda: os.uname_result((*real[:4], "aarch64"))\\n' > $site
done
umount /etc/hostname && systemctl stop systemd-hostnamed.service
hostnamectl set-hostname {{name}}
sed -i 's/^127.0.1.1.*/127.0.1.1 {{name}}/' /etc/hosts
"""
READY = "ready"
MAX_KEYS, MAX_ANSWERS = 60, 3
ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")
QUESTIONS = {
    "addresses": r"Addresses of yours.*?: ",
    "login": r"Login name on them.*?: ",
    "password": r"Password of .*?: ",
    "sudo": r"(Password for sudo on|\[sudo\] password for) .*?: ",
    "agree": r"\[[Yy]/[nN]\]: ",
}
# What Docker makes where it is asked what it has.
STAYS = re.compile(r"\./cni\b|/var/lib/(docker|containerd) ")


@dataclass
class Said:
    """A line that was typed, and what came of it. ``first_s``: until the first question."""

    text: str
    code: int
    seconds: float
    keys: int
    asked: list[str] = field(default_factory=list)
    first_s: float = 0.0


class Terminal:
    """A shell of somebody whose computer knows nothing yet."""

    def __init__(self, home: pathlib.Path, tools: Sequence[str], columns: int = 80) -> None:
        environment = {
            "HOME": str(home),
            "PATH": os.pathsep.join([*tools, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PS1": f"{READY}:$?> ",
            "INPUTRC": str(home / ".inputrc"),
        }
        ssh = pathlib.Path("~root/.ssh").expanduser()
        ssh.mkdir(mode=0o700, exist_ok=True)
        own = f'mount --bind {home}/.ssh {ssh}; cd "$HOME"; exec bash --norc --noprofile -i'
        self.shell = pexpect.spawn(
            "unshare",
            ["--mount", "--propagation", "private", "sh", "-ec", own],
            env=environment,
            dimensions=(24, columns),
            encoding="utf-8",
            codec_errors="replace",
        )
        self.shell.logfile_read = (home.parent / "terminal.log").open("a")
        self._end()

    def _end(self, within: float = 20) -> int:
        self.shell.expect(rf"{READY}:(\d+)> ", timeout=within)
        return int(self.shell.match[1])

    def type(
        self,
        line: str,
        answers: Mapping[str, str] | None = None,
        within: float = 60,
        *,
        at: Callable[[str], None] | None = None,
        ctrl_c: str = "",
    ) -> Said:
        """``answers``: by the name of the question; another one is an error. ``at``: called before each is answered.
        ``ctrl_c``: pressed where this is seen."""
        started = time.monotonic()
        said = Said("", -1, 0, len(line) + 1)
        self.shell.sendline(line)
        questions = {} if "</dev/null" in line else QUESTIONS  # nobody is there to be asked
        waited = {"end": rf"{READY}:(\d+)> ", **questions, **({"ctrl-c": ctrl_c} if ctrl_c else {})}
        while True:
            try:
                found = list(waited)[self.shell.expect(list(waited.values()), timeout=within)]
            except (pexpect.TIMEOUT, pexpect.EOF) as exc:
                seen = f"{said.text}{self.shell.before}"
                raise LabError(f"{line}: {type(exc).__name__} after {within:.0f} s:\n{seen}") from exc
            said.text += str(self.shell.before)
            if found == "end":
                break
            said.text += str(self.shell.after)
            if found == "ctrl-c":
                time.sleep(1)
                self.shell.sendintr()
                del waited[found]
                continue
            said.first_s = said.first_s or round(time.monotonic() - started, 1)
            said.asked.append(found)
            if found not in (answers or {}):
                self.shell.sendintr()
                raise LabError(f"{line}: asked for {found}:\n{said.text}")
            if at:
                at(found)
            said.keys += len((answers or {})[found]) + 1
            self.shell.sendline((answers or {})[found])
        lines = ESCAPE.sub("", said.text).replace("\r\n", "\n").split("\n")[1:]
        said.text = "\n".join(line.rpartition("\r")[2] for line in lines)  # without what a moving line was before
        said.code = int(self.shell.match[1])
        said.seconds = round(time.monotonic() - started, 1)
        return said

    def close(self) -> None:
        self.shell.close(force=True)


class OneLine(FirstLogin):
    def __init__(self, beside: str, machines: int) -> None:
        super().__init__(beside)
        self.hosts = HOSTS[:machines]
        self.password = f'{secrets.token_hex(3)}$" x'  # what a shell, a template and YAML would take apart
        self.short = pathlib.Path(tempfile.mkdtemp(prefix="sm-", dir="/tmp"))  # sockets of ssh are below it
        self.home = self.short / "home"
        self.figures: dict[str, float] = {}
        self.seen: list[str] = []  # where the password was seen
        self.before: dict[str, str] = {}
        self.problems: list[str] = []  # one does not hide the next
        self._watching = threading.Event()
        self.terminal: Terminal

    # -- what is there before the owner sits down

    def install(self) -> None:
        """The wheel in a new environment, while the machines boot."""
        started = time.monotonic()
        pip = pathlib.Path(sys.executable).with_name("pip")
        build: list[pathlib.Path | str] = [
            pip,
            "wheel",
            "--quiet",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            self.short,
            ROOT / "cli",
        ]
        subprocess.run(build, check=True, capture_output=True, text=True)
        (wheel,) = self.short.glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", self.short / "venv"], check=True)
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        command = [str(self.short / "venv/bin/pip"), "install", "--quiet", str(wheel)]
        subprocess.run(command, check=True, capture_output=True, text=True, env=clean)
        self.figures["wheel_mb"] = round(wheel.stat().st_size / 1e6, 1)
        self.figures["installed_s"] = round(time.monotonic() - started, 1)

    def deliver(self) -> None:
        """Machines as they come: a name, an account, a password. And the owner's computer."""
        for host in self.hosts:
            self.inside(host, SPARK.format(name=NAMES[host]))
            self.inside(host, MAKE.format(account=ACCOUNT, password=self.password))
        self.announce()
        (self.home / ".ssh").mkdir(mode=0o700, parents=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.short / "other"], check=True)
        (self.home / ".inputrc").write_text("set enable-bracketed-paste off\n")
        (self.home / "lab.json").write_text(json.dumps(self.of_the_lab()))
        self.before = {host: self.state_of(host) for host in self.hosts}

    def of_the_lab(self) -> dict[str, object]:
        """Variables of a machine without a GPU, and two models; which of them is served is the owner's choice."""
        values: dict[str, object] = yaml.safe_load((self.state / "overlay/group_vars/sparks.yml").read_text())
        recipe = yaml.safe_load((ROOT / f"tests/lab/recipes/{values.pop('engine_recipe')}.yml").read_text())
        recipes = self.short / "recipes"
        recipes.mkdir()
        for name in (MODEL, OTHER):  # it talks until there is no room
            mine = {**recipe, "served_model_name": name, "context": 128}
            (recipes / f"{name}.yml").write_text(json.dumps(mine))
        return {**values, "engine_recipe_paths": [str(recipes)]}

    def state_of(self, host: str) -> str:
        """As molecule/shared/snapshot.yml records it."""
        task = yaml.safe_load((ROOT / "molecule/shared/snapshot.yml").read_text())[0]["tasks"][0]
        script = task["ansible.builtin.shell"]["cmd"].replace("{{ snapshot_name }}", "now")
        run = "bash /root/state.sh && cat /root/now.state"
        return self.inside(host, f"cat > /root/state.sh <<'END'\n{script}\nEND\n{run}")

    def wrong(self, text: str) -> None:
        self.problems.append(text)
        say(text)

    def expect(self, what: str, seen: object, wanted: object) -> None:
        if seen != wanted:
            self.wrong(f"{what}: {seen!r}, expected {wanted!r}")

    def address(self, host: str) -> str:
        return str(self.logins[host]["ansible_host"])

    def tries(self) -> dict[str, int]:
        return {host: self.password_logins(host) for host in self.hosts}

    def settings(self) -> list[str]:
        return (self.home / "sparkmatrix/mine/group_vars/sparks.yml").read_text().splitlines()

    def nothing_yet(self) -> None:
        self.expect("an inventory", (self.home / "sparkmatrix/mine").exists(), False)

    @property
    def answers(self) -> dict[str, str]:
        return {"login": ACCOUNT, "password": self.password, "sudo": self.password, "agree": ""}

    def sit_down(self, columns: int = 80) -> Terminal:
        return Terminal(self.home, [str(self.place / "bin"), str(self.short / "venv/bin")], columns)

    # -- where a password must not be

    def watch(self) -> None:
        """Arguments and environments of all processes, of the nodes too."""
        secret = self.password.encode()

        def look() -> None:
            while not self._watching.wait(0.3):
                for process in pathlib.Path("/proc").glob("[0-9]*"):
                    for name in ("cmdline", "environ"):
                        try:
                            if secret in (process / name).read_bytes():
                                self.seen.append(f"{name} of {(process / 'cmdline').read_bytes()!r}")
                        except OSError:
                            pass

        threading.Thread(target=look, daemon=True).start()

    def nowhere(self) -> None:
        self.expect("the password in processes", self.seen, [])
        files = (path for path in self.home.rglob("*") if path.is_file() and not path.is_socket())
        self.expect("the password in files", [str(p) for p in files if self.password.encode() in p.read_bytes()], [])
        shown = (self.short / "terminal.log").read_text(errors="replace")
        self.expect("the password on the screen", self.password in shown, False)
        for host in self.hosts:
            self.expect(
                "the password in the journal",
                self.inside(host, f"journalctl -q | grep -c '{self.password}' || true").strip(),
                "0",
            )

    # -- what is typed

    def said(
        self,
        line: str,
        answers: Mapping[str, str] | None = None,
        *,
        code: int = 0,
        has: Sequence[str] = (),
        within: float = 60,
        at: Callable[[str], None] | None = None,
        ctrl_c: str = "",
        asks: Sequence[str] | None = None,
    ) -> Said:
        """``asks``: what it has to ask for, no more and no less."""
        said = self.terminal.type(line, answers, within, at=at, ctrl_c=ctrl_c)
        words = " ".join(said.text.split())
        problems = [f"without {part!r}" for part in has if part not in words]
        problems += ["with a traceback"] if "Traceback" in words else []
        problems += [f"ended with {said.code}, not {code}"] if said.code != code else []
        problems += [f"asked for {said.asked}, not {asks}"] if asks is not None and said.asked != [*asks] else []
        if problems:
            self.wrong(f"$ {line}\n{said.text}\n   {'; '.join(problems)}")
        say(f"   $ {line}: {said.code}, {said.seconds} s, asked: {', '.join(said.asked) or 'nothing'}")
        return said

    def down(self) -> None:
        self._watching.set()
        super().down()
        log = self.short / "terminal.log"
        if log.exists():
            shutil.copy(log, cluster.STATE / "one-line.log")
        shutil.rmtree(self.short, ignore_errors=True)


LAB = "-e @lab.json"
SUDO = ["sudo"]
AGAIN = ["the same command again; it goes on from there"]
ASK_MODELS = """
import os, urllib.request as web
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = web.Request(os.environ["OPENAI_BASE_URL"] + "/models", headers=key)
print(web.urlopen(asked, timeout=20).read().decode(), os.environ["OPENAI_MODEL"])
"""


def up(here: OneLine) -> None:
    """One line, and what the owner answers, to an answer of the model."""
    line = f"sparkmatrix up {MODEL}"
    has = [
        *(word for host in here.hosts for word in (NAMES[host], here.fingerprint(host))),
        "Say hello in one short sentence.",
    ]
    said = here.said(f"{line} {LAB}", here.answers, has=has, within=400)
    here.expect("an answer", bool(re.search(rf"-- {MODEL}: \d+ tokens?", said.text)), True)
    keys = said.keys - len(f" {LAB}")
    here.figures |= {"answers": len(said.asked), "keys": keys, "question_s": said.first_s, "answer_s": said.seconds}
    here.expect("what was asked", said.asked, ["login", "password", "agree"])
    here.expect(f"at most {MAX_KEYS} keys", keys <= MAX_KEYS, True)
    here.expect("the model is kept", f"engine_recipe: {MODEL}" in here.settings(), True)


def day(here: OneLine) -> None:
    """The next day: status, and another answer."""
    here.said(f"sparkmatrix status {LAB}", here.answers, has=[*here.hosts, MODEL], asks=SUDO)
    here.said('sparkmatrix ask "Which fox?"', here.answers, has=[f"-- {MODEL}: "], asks=SUDO)


def switch(here: OneLine) -> None:
    """Another model, which is kept in one line of the inventory."""
    before = here.settings()
    kept = [f"-engine_recipe: {MODEL}", f"+engine_recipe: {OTHER}"]
    said = here.said(f"sparkmatrix run {OTHER} {LAB}", here.answers, has=kept, within=300, asks=SUDO)
    here.figures["run_s"] = said.seconds
    changed = [(old, new) for old, new in zip(before, here.settings(), strict=True) if old != new]
    here.expect("what changed of it", changed, [(f"engine_recipe: {MODEL}", f"engine_recipe: {OTHER}")])
    here.said('sparkmatrix ask "Which fox?"', here.answers, has=[f"-- {OTHER}: "], asks=SUDO)


def undo(here: OneLine) -> None:
    """All is given back."""
    here.said("sparkmatrix undo", {**here.answers, "agree": "n"}, code=1, asks=["agree"])
    here.said(f"sparkmatrix undo {LAB}", {**here.answers, "agree": "y"}, within=200, asks=["agree", "sudo"])
    for host in here.hosts:
        old, new = here.before[host].splitlines(), here.state_of(host).splitlines()
        differs = [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]
        if left := [line for line in differs if not STAYS.search(line)]:
            look = "ls -laR --time-style=full-iso /etc/sparkmatrix; journalctl -q --no-pager | tail -n 30"
            here.wrong(f"what {host} has after undo: {left}\n{here.inside(host, f'({look}) 2>&1 || true')}")


# --- --all -----------------------------------------------------------------------------------------------------------


def mistakes(here: OneLine) -> None:
    """Nothing is there yet, and what is typed is wrong."""
    here.said("sparkmatrix staus", code=2, has=["status"], within=10)
    here.said(
        "sparkmatrix status", code=1, has=["There is no inventory ~/sparkmatrix/mine", "sparkmatrix up"], within=10
    )
    here.said("sparkmatrix up </dev/null", code=1, has=["Nobody has answered this"], within=30)
    silent = here.address("spark1").rpartition(".")[0] + ".99"
    here.said(f"sparkmatrix up --on {here.address('spark1')},{silent}", code=4, has=[f"{silent}: no answer to ssh"])
    tries = here.tries()
    wrong = {**here.answers, "password": "wrong"}
    here.said(f"sparkmatrix up {MODEL} {LAB}", wrong, code=1, has=["password"], asks=["login", "password"])
    most = {host: before + 2 for host, before in tries.items()}
    here.expect("tries of a wrong password", [h for h, now in here.tries().items() if now > most[h]], [])
    here.nothing_yet()


def strangers(here: OneLine) -> None:
    """Host keys that are others than those that were shown, or known before: no password goes there."""
    tries = here.tries()

    def other_key(question: str) -> None:
        if question == "password":
            here.inside("spark2", "rm /etc/ssh/ssh_host_*; ssh-keygen -A >/dev/null; systemctl restart ssh")

    line = f"sparkmatrix up {MODEL} {LAB}"
    here.said(line, here.answers, code=1, has=[here.address("spark2"), "host key"], at=other_key)
    here.expect("passwords to it", {**tries, **here.tries(), "spark1": 0}, {**tries, "spark1": 0})
    tries = here.tries()
    known = here.home / ".ssh/known_hosts"
    before = known.read_text() if known.exists() else ""
    kind, key = (here.short / "other.pub").read_text().split()[:2]
    known.write_text(f"{before}{here.address('spark1')} {kind} {key}\n")
    here.said(line, here.answers, code=1, has=[here.address("spark1"), "ssh-keygen", "-R"])
    here.expect("passwords to it", here.tries()["spark1"], tries["spark1"])
    known.write_text(before)
    here.before["spark2"] = here.state_of("spark2")
    here.nothing_yet()


def narrow(here: OneLine) -> None:
    """The same words in a window of 40 columns as in one of 200."""
    for line in ("sparkmatrix plan --nodes 2", "sparkmatrix models"):
        said = {}
        for columns in (40, 200):
            window = here.sit_down(columns)
            said[columns] = window.type(line)
            window.close()
        here.expect(f"{line}: exit codes", [one.code for one in said.values()], [0, 0])
        lines = said[40].text.splitlines()
        # A line to copy stays one.
        cut = [one for one in lines if len(one) > 40 and " " in one.strip() and not one.startswith("$ ")]
        here.expect(f"{line}: lines that 40 columns cut", cut, [])
        # Without the name of a log, and seconds.
        texts = [re.sub(r"\d+-\d+-\d+|\d+ s\b", "", " ".join(one.text.split())) for one in said.values()]
        narrow, wide = ({*re.findall(r"[\w.-]+", text)} for text in texts)
        here.expect(f"{line}: words that are lost in 40 columns", wide - narrow, set())


def stopped(here: OneLine) -> None:
    """Ctrl-C while machines are looked at and while they are set up; the same line goes on to the answer."""
    line = f"sparkmatrix up {MODEL} {LAB}"
    here.said(line, here.answers, code=130, ctrl_c="Find out which of them", has=AGAIN)
    here.nothing_yet()
    here.said(line, here.answers, code=130, ctrl_c="Wait for the first token: 3 s", within=200, has=AGAIN)
    said = here.said(line, here.answers, within=400, asks=["sudo", "agree"], has=["Say hello in one short sentence."])
    here.expect("an answer", bool(re.search(rf"-- {MODEL}: \d+ tokens?", said.text)), True)


def verbs(here: OneLine) -> None:
    """Every other verb."""
    here.said("sparkmatrix undo </dev/null", code=2, has=["--yes"])
    here.said('eval "$(sparkmatrix env)"', here.answers, asks=SUDO)
    program = here.home / "ask.py"
    program.write_text(ASK_MODELS)
    here.said("python3 ask.py", has=[f'"{OTHER}"'])
    here.said("sparkmatrix env --close", has=["1 tunnel(s)"])
    here.said("python3 ask.py 2>/dev/null", code=1)
    here.said(f"sparkmatrix plan {LAB}", has=[OTHER])
    here.said("sparkmatrix plan qwen3-8b", has=["qwen3-8b"])
    here.said("sparkmatrix models coder", has=["coder"])
    for verb in ("plan", "models"):
        here.said(f"sparkmatrix {verb} --json 2>/dev/null | python3 -m json.tool >/dev/null")
    here.said(f"sparkmatrix check {LAB}", here.answers, asks=SUDO, has=["spark1"])
    here.said(f"sparkmatrix doctor {LAB}", here.answers, asks=SUDO, within=120)
    here.said(f"sparkmatrix report {LAB}", here.answers, within=120, has=[".html"])
    here.said(f"sparkmatrix support {LAB}", here.answers, asks=SUDO, within=120, has=[".tar"])
    here.said("sparkmatrix logs", here.answers, has=["spark1", "spark2"], asks=SUDO)
    here.said("sparkmatrix top", here.answers, ctrl_c="tokens/s", asks=SUDO)
    here.said(f"sparkmatrix bench --tags fabric {LAB}", here.answers, code=1, has=["perftest"], asks=SUDO)
    here.said(f"sparkmatrix stop {LAB}", here.answers, asks=SUDO, within=120)
    here.said('sparkmatrix ask "Which fox?"', here.answers, code=1, asks=SUDO)
    here.said(f"sparkmatrix start {LAB}", here.answers, asks=SUDO, within=200)
    here.said("sparkmatrix ansible sit", code=2, has=["Did you mean", "site"])
    here.said(f"sparkmatrix ansible verify {LAB}", here.answers, asks=SUDO, within=120)
    here.said(f"sparkmatrix update {LAB}", here.answers, has=["Failed to fetch"], asks=SUDO, within=200)


SHORT = (up, day, undo)
ALL = (mistakes, narrow, strangers, stopped, day, switch, verbs, undo)


def main() -> int:
    parser = cluster.options()
    parser.add_argument("--all", action="store_true", help="two machines, every verb, refusals")
    parser.add_argument("--only", default="", metavar="STEP[,STEP]", help="with --all: these of its steps")
    chosen = parser.parse_args()
    here = OneLine(chosen.beside, 2 if chosen.all else 1)
    steps = [one for one in (ALL if chosen.all else SHORT) if not chosen.only or one.__name__ in chosen.only.split(",")]
    try:
        with ThreadPoolExecutor() as pool:
            installed = pool.submit(here.install)
            here.boot(len(here.hosts))
            here.deliver()
            installed.result()
        here.watch()
        here.terminal = here.sit_down()
        for step in steps:
            say(f"-- {step.__doc__}")
            step(here)
            if here.problems and not chosen.all:
                break
        here.nowhere()
    except (LabError, subprocess.SubprocessError, pexpect.ExceptionPexpect) as exc:
        here.wrong(str(exc))
    finally:
        here.down()
    say(json.dumps({"one_line": here.figures, "problems": len(here.problems)}))
    return 1 if here.problems else 0


if __name__ == "__main__":
    sys.exit(main())
