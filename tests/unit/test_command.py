# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The command ``sparkmatrix``: what it runs, asks and keeps. A whole first time: tests/scenarios/test_one_line.py."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import discover
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs
from click.testing import CliRunner, Result
from sparkmatrix import first, head, play
from sparkmatrix import main as command
from sparkmatrix.main import main, playbooks

ROOT = Path(__file__).resolve().parents[2]
LINES = 600
PLAYED = {verb: playbook for playbook, verb in verbs.NAMED.items()}


@pytest.fixture(name="ran")
def _ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Words of what would have been started; a home with one inventory."""
    started: list[list[str]] = []

    class Started:
        returncode = None
        stdout = None

        def __init__(self, words: list[str], **settings: Any) -> None:
            given = {
                option: Path(pipe).read_text() for option, pipe in zip(words, words[1:]) if "password-file" in option
            }
            started.append([*words, *given.values()])

        def wait(self) -> None:
            self.returncode = 0

    for name in (verbs.CALLED_BY, "ANSIBLE_CONFIG"):  # which it sets
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(command, "PLACE", tmp_path / "sparkmatrix")
    monkeypatch.setattr(play, "subprocess", SimpleNamespace(Popen=Started, PIPE=-1))
    monkeypatch.setattr(head.Head, "sudo", lambda self: self.password or "")
    place = tmp_path / "sparkmatrix/mine"
    (place / "group_vars").mkdir(parents=True)
    (place / "hosts.yml").write_text(
        "all: {children: {sparks: {hosts: {s1: {ansible_host: 192.0.2.1, spark_rank: 0}}}}}\n"
    )
    (place / "group_vars/sparks.yml").write_text("# mine\nengine_recipe: qwen3-8b # 16 GB\n# more\n")
    yield started


@pytest.fixture(name="ansible")
def _ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of ansible-playbook."""

    def put(text: str) -> None:
        (tmp_path / "ansible-playbook").write_text(text)
        (tmp_path / "ansible-playbook").chmod(0o755)
        monkeypatch.setattr(play.sys, "executable", str(tmp_path / "python"))

    return put


def call(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(words), input=text, standalone_mode=False)


def test_it_is_thin() -> None:
    """What it decides is decided in the collection."""
    paths = (ROOT / "cli/sparkmatrix").glob("*.py")
    assert sum(len(path.read_text().splitlines()) for path in paths) <= LINES


def test_every_verb_is_a_playbook_and_stands_in_the_guide() -> None:
    """One to one: the verbs of the command, the table that runs are told by, the playbooks, and the page."""
    page = (ROOT / "docs/command.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)[^|`]*` \| ([^|]+) \|", page, re.MULTILINE)
    told = {verb: re.findall(r"`([a-z_]+)\.yml`", where) for verb, where in rows}
    assert list(told) == list(verbs.VERBS) and set(told) == set(main.commands)
    played = {verb: [playbook] for verb, playbook in PLAYED.items()}
    first = {"init": ["discover", "bootstrap"], "up": ["preflight", "site"]}
    assert {verb: books for verb, books in told.items() if books} == played | first
    assert {playbook for books in told.values() for playbook in books} <= set(playbooks())


@pytest.mark.parametrize("verb", [verb for verb in PLAYED if verb not in ("plan", "models", "up", "run", "undo")])
def test_a_verb_prints_and_runs_its_playbook(ran: list[list[str]], verb: str) -> None:
    done = call(verb, "--limit", "s1", "-v")
    assert not done.exception, done.output
    ((program, name, *words),) = ran
    assert done.return_value == 0 and program.endswith("ansible-playbook")
    assert name == f"sparkmatrix.cluster.{PLAYED[verb]}"
    assert words == ["-i", str(command.PLACE / "mine"), "--limit", "s1", "-v"]
    assert f"$ ansible-playbook {name} -i " in done.output


def test_a_model_is_kept_after_it_has_answered(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    file = command.PLACE / "mine/group_vars/sparks.yml"
    before = file.read_text()
    assert call("run", "minimax-m2.7-awq", "--check").return_value == 0
    assert file.read_text() == before
    monkeypatch.setattr(play, "CODES", {0: 1})  # it is refused
    assert call("run", "minimax-m2.7-awq").return_value == 1
    assert file.read_text() == before
    monkeypatch.setattr(play, "CODES", {0: 0})
    done = call("run", "minimax-m2.7-awq")
    assert file.read_text() == before.replace("qwen3-8b # 16 GB", "minimax-m2.7-awq")
    assert "+engine_recipe: minimax-m2.7-awq" in done.output and "-engine_recipe: qwen3-8b" in done.output
    assert [words[-2:] for words in ran[1:]] == [["-e", "engine_recipe=minimax-m2.7-awq"]] * 2


def test_a_file_is_kept_with_what_it_was_allowed_and_no_other_recipe_is(
    ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = command.PLACE / "mine/group_vars/sparks.yml"
    assert call("run", "mine.yml", "-e", "engine_allow=command").return_value == 0
    mine = f"engine_recipe={tmp_path}/mine.yml"
    assert f"\nengine_recipe: {tmp_path}/mine.yml\nengine_allow: [command]  #" in file.read_text()
    kept = file.read_text()
    assert call("run", "mine.yml").return_value == 0 and file.read_text() == kept
    assert call("run", "qwen3-8b").return_value == 0
    assert file.read_text() == "# mine\nengine_recipe: qwen3-8b\n# more\n"
    assert call("run", "mine.yml", "--extra-vars", '{"engine_allow": ["command"]}').return_value == 0
    assert file.read_text() == kept
    assert [words[4:] for words in ran] == [
        ["-e", mine, "-e", "engine_allow=command"],
        ["-e", mine],
        ["-e", "engine_recipe=qwen3-8b", "-e", '{"engine_allow": []}'],
        ["-e", mine, "--extra-vars", '{"engine_allow": ["command"]}'],
    ]


def test_which_inventory(ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only one; one of several by its name, before or after the verb; a path."""
    (command.PLACE / "left.unfinished").mkdir()
    assert call("check").return_value == 0
    other = command.PLACE / "other"
    (command.PLACE / "mine").rename(other)
    (command.PLACE / "third").mkdir()
    assert isinstance(call("check").exception, click.UsageError)
    monkeypatch.chdir(other)
    for words in (
        ("-i", "other", "check"),
        ("check", "-i", "other"),
        ("-i", "third", "check", "-i", str(other)),
        ("-i", ".", "check"),
    ):
        call(*words)
    assert [Path(words[3]).resolve().name for words in ran] == ["mine", *["other"] * 4]
    for words in (("check",), ("ansible", "node_add")):
        said = call("-i", "nix", *words).exception
        assert isinstance(said, click.ClickException) and "sparkmatrix/nix" in str(said) and " -i nix up" in str(said)


def test_sudo_gets_its_password_through_a_pipe(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head.Head, "sudo", lambda _self: "s3cret")
    done = call("check")
    ((*words, option, path, secret),) = ran
    assert (option, secret) == ("--become-password-file", "s3cret")
    assert not Path(path).exists() and "s3cret" not in f"{words}{done.output}"
    assert "--ask-become-pass" in done.output  # what somebody would type
    call("check", "-K")
    assert ran[1][-1] == "-K"  # who wants to be asked by Ansible is


def test_a_password_goes_to_a_known_host_key_only(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many have this in their shell, for machines that are made anew each day."""
    given: list[dict[str, str]] = []
    popen = play.subprocess.Popen
    monkeypatch.setattr(play.subprocess, "Popen", lambda words, **more: given.append(more["env"]) or popen(words))
    for name in play.CHECKED:
        monkeypatch.setenv(name, "False")
    call("check")
    monkeypatch.setattr(head.Head, "sudo", lambda _self: "s3cret")
    call("check")
    assert [[one[name] for name in play.CHECKED] for one in given] == [["False"] * 2, ["true"] * 2]


def test_nothing_is_imported_from_the_current_folder(
    ansible: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a password Ansible shares memory, for which Python starts a helper with ``-c``: it looks here first."""
    seen = tmp_path / "seen"
    text = f"from multiprocessing import resource_tracker; resource_tracker.ensure_running(); open({str(seen)!r}, 'w')"
    ansible(f"#!{play.sys.executable}\n{text}\n")
    (tmp_path / "collections.py").write_text(f"open({str(tmp_path / 'evil')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    assert play.play("site", None) == 0 and seen.exists()
    time.sleep(0.5)  # the helper is waited for by nobody
    assert not (tmp_path / "evil").exists()


@pytest.fixture(name="begun")
def _begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a first time with one machine, at two addresses, would run; it is refused."""
    begun: list[str] = []
    machine = discover.Machine("192.0.2.1", "spark", "SHA256:a", "ED25519", True, False, ("192.0.2.9",))
    monkeypatch.setattr(first, "choose", lambda _where: ([machine], []))
    monkeypatch.setattr(first.discover, "opens", lambda *_all: True)
    monkeypatch.setattr(first.own_key, "ensure", lambda: "")
    monkeypatch.setattr(first.click, "prompt", lambda *_all, **_more: "me")
    monkeypatch.setattr(first, "play", lambda name, _place, words, _both: begun.append(f"{name} {words}") or 1)
    return begun


def test_an_unfinished_inventory_is_of_one_name(begun: list[str], tmp_path: Path) -> None:
    """Another one, whose name begins alike, is not cleared away."""
    other = tmp_path / "lab.unfinished"
    other.mkdir()
    assert first.inventory(tmp_path / "lab.home", "") == (1, "") and other.is_dir() and len(begun) == 1


def test_a_machine_is_asked_at_all_its_addresses(begun: list[str], tmp_path: Path) -> None:
    """From here Wi-Fi looks like Ethernet; the machine's own routes tell where it is managed."""
    first.inventory(tmp_path / "mine", "")
    assert '"192.0.2.1 192.0.2.9"' in begun[0]


def test_which_machines_are_meant(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Those with the name of a Spark, or those that were named; this computer needs no ssh; silence ends it."""
    spark = discover.Candidate("192.0.2.1", "spark-1a2b", "SSH-2.0", "", "SHA256:a", "ED25519")
    disk, gone = discover.Candidate("192.0.2.5", "nas", "SSH-2.0", "", "SHA256:b"), discover.Candidate("192.0.2.7")
    here = discover.Candidate("192.0.2.2", "spark-3c4d", own=True)
    network = {"": [spark, disk, here], "192.0.2.5": [disk], "192.0.2.7": [gone]}
    monkeypatch.setattr(first.discover, "find", network.__getitem__)
    assert {machine.address for machine in first.choose("")[0]} == {"192.0.2.1", "192.0.2.2"}
    said = capsys.readouterr().err
    assert "Left out, not named like a Spark: nas 192.0.2.5" in said and "SHA256:a" in said and "this computer" in said
    assert [machine.address for machine in first.choose("192.0.2.5")[0]] == ["192.0.2.5"]
    with pytest.raises(click.exceptions.Exit) as ended:
        first.choose("192.0.2.7")
    assert ended.value.exit_code == play.SILENT


def test_inventories_may_be_in_a_git_repository(ran: list[list[str]]) -> None:
    (command.PLACE / ".git").mkdir()
    call("check")
    assert ran[0][3].endswith("/mine")


@pytest.mark.parametrize(
    ("ended", "code"), [(0, 0), (1, 1), (2, 1), (4, 4), (5, 1), (99, 130), (-2, 130), (130, 130), (250, 130)]
)
def test_exit_codes(ansible: Callable[[str], None], ended: int, code: int) -> None:
    ansible(f"#!/bin/sh\n{'kill -INT $$' if ended < 0 else f'exit {ended}'}\n")
    assert play.play("site", None) == code


def test_nothing_is_changed_without_a_yes(ran: list[list[str]]) -> None:
    for words in (("undo",), ("up",)):
        assert isinstance(call(*words).exception, click.UsageError)  # no terminal
    assert [words[1].rpartition(".")[2] for words in ran] == ["preflight"]
    assert call("undo", "--yes").return_value == 0 and ran[-1][1].endswith(".reset")


SSH = """#!/bin/sh
# What of ssh is needed here: it runs the last word, or says whether a socket's tunnel is there.
echo "$@" >> {log}
case "$*" in
  *"-O check"*) [ -e "$2" ] ;;
  *"-O exit"*) rm "$2" ;;
  *-fNM*) for word in "$@"; do case $word in */sm-*) touch "$word" ;; esac; done ;;
  *) for word in "$@"; do last=$word; done; PATH={bin}:$PATH sh -c "$last" ;;
esac
"""
SUDO = """#!/bin/sh
# As it is where the head's own program needs no password, and everything else does.
case "$*" in
  "-k -n env true") exit {asks} ;;
  "-k -S -p  env "*) read -r word; [ "$word" = s3cret ] || exit 9; shift 5 ;;
  "-k -S -p  "*) shift 4 ;;
  *) shift ;;
esac
shift; printf '%s: ' "$*"; cat
"""


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> head.Head:
    """A head whose sudo wants a password."""
    for name, text in (("ssh", SSH), ("sudo", SUDO)):
        (tmp_path / name).write_text(text.format(log=tmp_path / "log", bin=tmp_path, asks=1))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(head, "SOCKETS", tmp_path / "cp")
    return head.Head("spark1", (str(tmp_path / "ssh"),), "me@192.0.2.1")


def test_a_password_goes_to_sudo_and_to_nobody_else(machine: head.Head, tmp_path: Path) -> None:
    machine.typed = "s3cret"
    assert machine.run(("ask",), "Hello", capture=True) == (0, "ask: Hello")
    # It was typed for the login, and sudo wants none: it would be what the model is asked.
    (tmp_path / "sudo").write_text(SUDO.format(asks=0))
    other = head.Head("spark1", machine.ssh, machine.to, typed="s3cret")
    assert other.run(("ask",), "Hello", capture=True) == (0, "ask: Hello")
    assert "s3cret" not in (tmp_path / "log").read_text()


def test_a_shared_connection_is_of_one_way_to_a_machine(machine: head.Head) -> None:
    """The same address behind another jump host is another machine, and gets another password."""
    other = head.Head("spark1", (*machine.ssh, "-J", "elsewhere"), machine.to)
    paths = [[word for word in one.words("true") if "ControlPath" in word] for one in (machine, other)]
    assert [len(path) for path in paths] == [1, 1] and paths[0] != paths[1]


def test_what_a_head_says_does_nothing_to_the_terminal(
    machine: head.Head, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sudo").write_text("#!/bin/sh\nprintf '\\033]0;mine\\007'; printf '\\033c' >&2\n")
    assert machine.run(("ask",), "Hello") == (0, "")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("\\x1b]0;mine\\x07", "\\x1bc")


def test_only_top_and_logs_are_a_terminal_of_the_head(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives no input at a terminal gets that of the head."""
    given: dict[str, Any] = {}

    def run(_head: head.Head, words: list[str], text: str | None = None, capture: bool = False) -> tuple[int, str]:
        given[words[0]] = text is None and not capture
        return 1, ""

    monkeypatch.setattr(head.Head, "run", run)
    for words in (("ask", "a"), ("env",), ("status", "--json"), ("top",), ("logs", "-f")):
        call(*words)
    assert given == {"ask": False, "env": False, "status": False, "top": True, "logs": True}


def test_a_tunnel_is_used_again_and_closed(machine: head.Head) -> None:
    port = machine.tunnel("127.0.0.1", 8000)
    assert machine.tunnel("127.0.0.1", 8000) == port
    machine.tunnel("spark2-fabric", 8000)
    # The same name in another cluster is another machine.
    assert head.Head("spark1", machine.ssh, "me@192.0.2.9").close() == 0
    assert (machine.close(), machine.close()) == (2, 0)


def test_the_head_itself_needs_no_tunnel(machine: head.Head) -> None:
    assert head.Head("spark1", (), "").tunnel("127.0.0.1", 8000) == 8000


def test_the_current_folder_says_nothing_of_a_machine(
    ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose clone one stands in may have variables for a machine of this name: a command to run instead of ssh."""
    monkeypatch.chdir(tmp_path)
    for name in ("host_vars/s1.yml", "group_vars/all.yml", "group_vars/sparks.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{ansible_ssh_common_args: -o ProxyCommand=evil, ansible_user: evil}\n")
    (tmp_path / "ansible.cfg").write_text("[ssh_connection]\nssh_args = -o ProxyCommand=evil\n")
    found = head.of(command.PLACE / "mine", "")
    assert (found.to, found.ssh) == ("192.0.2.1", ("ssh",))


def test_the_head_of_an_inventory(ran: list[list[str]]) -> None:
    (command.PLACE / "mine/hosts.yml").write_text(
        "all: {children: {sparks: {vars: {ansible_user: me}, hosts: {"
        "b: {ansible_host: 192.0.2.2, spark_rank: 1}, a: {ansible_host: '{{ at }}', at: 192.0.2.1, spark_rank: 0,"
        " ansible_ssh_private_key_file: /k}}}}}\n"
    )
    found = head.of(command.PLACE / "mine", "")
    assert (found.host, found.to, found.ssh) == ("a", "me@192.0.2.1", ("ssh", "-i", "/k"))
    (command.PLACE / "mine/hosts.yml").write_text("all: {children: {sparks: {hosts: {}}}}\n")
    with pytest.raises(SparkError):
        head.of(command.PLACE / "mine", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check --limt spark2", "There is no option --limt. Did you mean --limit?"),
        ("plan --nodse 4", "There is no option --nodse. Did you mean --nodes?"),
        ("ansible nod_add", "There is no playbook nod_add. Did you mean node_add?"),
        ("ansible zzz", "There is no playbook zzz. There are: access, "),
        ("up minimax-m2.7-awq spark2", "What is spark2 for? For some machines only: --limit spark2"),
        ("ansible node_add spark2", "What is spark2 for? For some machines only: --limit spark2"),
        ("plan --nodes 5", "Without an inventory: --nodes 1, 2, 3, 4 or 8. For others: "),
    ],
)
def test_a_wrong_line_is_refused_before_anything_runs(ran: list[list[str]], words: str, said: str) -> None:
    refused = call(*words.split()).exception
    assert isinstance(refused, click.UsageError) and str(refused.message).startswith(said)
    assert not ran


def test_a_ring_is_planned_without_an_inventory(ran: list[list[str]]) -> None:
    assert call("plan", "--nodes", "3").return_value == 0
    assert Path(ran[0][3]).name == "3spark_ring"


@pytest.mark.parametrize(
    ("prefix", "typed"),
    [
        ("/home/me/.cache/uv/archive-v0/x", "uvx sparkmatrix"),
        ("/elsewhere/archive-v0/x", "uvx sparkmatrix"),
        ("/home/me/.cache/pipx/0a1b", "pipx run sparkmatrix"),
        ("/home/me/.local/share/pipx/venvs/sparkmatrix", "sparkmatrix"),
        ("/home/me/.local/share/uv/tools/sparkmatrix", "sparkmatrix"),
    ],
)
def test_what_it_tells_to_type_is_how_it_was_called(monkeypatch: pytest.MonkeyPatch, prefix: str, typed: str) -> None:
    monkeypatch.setattr("sys.prefix", prefix)
    monkeypatch.setattr("sys.argv", ["/bin/sparkmatrix"])
    monkeypatch.setattr("shutil.which", lambda _name: "/bin/sparkmatrix")
    assert verbs.called() == typed


@pytest.mark.parametrize(
    ("why", "code", "said"), [(EOFError, 1, "Nobody has answered"), (KeyboardInterrupt, 130, "The same line goes on")]
)
def test_nobody_there_is_not_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: type[BaseException], code: int, said: str
) -> None:
    def prompt(**_settings: Any) -> None:
        try:
            raise why
        except (EOFError, KeyboardInterrupt):
            raise click.Abort from None

    monkeypatch.setattr(command, "main", prompt)
    with pytest.raises(SystemExit) as ended:
        command.program()
    assert ended.value.code == code and said in capsys.readouterr().err
