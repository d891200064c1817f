# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix logs``: what nodes say is put in order, and not trusted."""

from __future__ import annotations

import json
import os
import threading

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import forced_command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import every_node, logs, word_colours
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status.logs import Entry
from fake_machine import Printed
from module_runner import arguments, run_program


def journal_line(at, unit, message, **more):
    return json.dumps({"__REALTIME_TIMESTAMP": str(at * 1_000_000), "_SYSTEMD_UNIT": unit, "MESSAGE": message, **more})


def test_lines_of_the_journal():
    assert logs.parse(journal_line(5, "sparkmatrix-keeper.service", "it serves")) == Entry(5.0, "keeper", "it serves")
    by_systemd = journal_line(5, "init.scope", "Started", UNIT="sparkmatrix-engine-chat.service", _PID="1")
    assert logs.parse(by_systemd) == Entry(5.0, "engine-chat", "Started")
    assert logs.parse(journal_line(5, "x", list(b"caf\xc3\xa9"))).text == "café"
    for broken in ("", "{}", "[]", "no json", journal_line(5, "x", None).replace("5000000", "x")):
        assert logs.parse(broken) is None


def test_a_part_that_talks_much_hides_no_other():
    asked = []

    def run(argv):
        asked.append(argv[-1])
        return Completed(0, journal_line(5, argv[-1].replace("*", ".service"), "said") + "\n")

    found = logs.journal(Machine(runner=run))
    assert [entry.unit for entry in found] == list(logs.PARTS)
    assert asked == [f"sparkmatrix-{part}*" for part in logs.PARTS]


def test_a_node_leaves_its_secrets_out(tmp_path):
    (tmp_path / "etc/sparkmatrix").mkdir(parents=True)
    (tmp_path / "etc/sparkmatrix/ray.token").write_text("plainly-the-token")
    said = []
    logs.tell(
        Machine(str(tmp_path), lambda _argv: Completed(1)), [Entry(1, "ray", "with plainly-the-token")], said.append
    )
    assert json.loads(said[0]) == {"at": 1, "unit": "ray", "text": "with (left out)"}


def test_secrets_that_settings_name_and_keys_of_several_lines_are_left_out(tmp_path):
    (tmp_path / "etc/sparkmatrix").mkdir(parents=True)
    (tmp_path / "etc/sparkmatrix/engine.env").write_text(
        f'MY_SECRET="plainly-of-the-user"\nHF_TOKEN_PATH="/srv/token"\nNCCL_DEBUG="INFO"\nX={"y" * 20}\n'
    )
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/token").write_text("plainly-elsewhere\n")
    lines = [
        *(("engine", "plainly-of-the-user and plainly-elsewhere"), ("ray", "-----BEGIN RSA PRIVATE KEY-----")),
        *(("ray", "abc"), ("engine", "between"), ("ray", "-----END RSA PRIVATE KEY-----"), ("ray", "after")),
    ]
    said = []
    logs.tell(Machine(str(tmp_path)), [Entry(1, unit, text) for unit, text in lines], said.append)
    assert [json.loads(line)["text"] for line in said] == [
        *("(left out) and (left out)", "(left out)", "(left out)", "between", "(left out)", "after"),
    ]
    said.clear()
    endless = [Entry(1, "ray", "-----BEGIN PRIVATE KEY-----"), *[Entry(1, "ray", "words")] * 200]
    logs.tell(Machine(str(tmp_path)), endless, said.append)
    assert json.loads(said[-1])["text"] == "words"


def test_a_key_that_never_ends_hides_nothing_but_what_may_be_of_it(tmp_path):
    said = []
    lines = ["-----BEGIN PRIVATE KEY-----", "b3BlbnNzaC1rZXktdjEA", "CUDA error: out of memory", "words"]
    logs.tell(Machine(str(tmp_path)), [Entry(1, "engine", line) for line in lines], said.append)
    told = [json.loads(line)["text"] for line in said]
    assert told == ["(left out)", "(left out)", "CUDA error: out of memory", "words"]


def test_lines_of_ray_have_the_time_of_the_line_before(monkeypatch):
    text = "[2026-11-23 10:00:01,5 I 1 1] (raylet) started\n  a second line\n"
    monkeypatch.setattr(logs.capture, "ray_logs", lambda _machine: {"/x/logs/raylet.out": text})
    first, second = logs.ray_files(Machine())
    assert first.unit == "ray/raylet.out" and first.at == second.at > 1.7e9
    assert logs.wanted(first, ["ray"]) and not logs.wanted(first, ["engine"])


def test_no_file_of_ray_hides_another_one(monkeypatch):
    files = {"/x/logs/gcs_server.out": "one\n", "/x/logs/raylet.out": "dump\n" * 9999}
    monkeypatch.setattr(logs.capture, "ray_logs", lambda _machine: files)
    units = [entry.unit for entry in logs.ray_files(Machine())]
    assert (units.count("ray/gcs_server.out"), units.count("ray/raylet.out")) == (1, logs.RAY_LINES)


def streams(said):
    """``said``: by host, lines and exit code."""

    def made(nodes, _command, _word, _options):
        return [every_node.Stream(host, ["x"], lambda _argv, host=host, **_kw: Printed(*said[host])) for host in nodes]

    return made


def told(*entries):
    return "".join(json.dumps({"at": at, "unit": unit, "text": text}) + "\n" for at, unit, text in entries)


NODES = {"spark1": True, "spark2": False}


def test_all_nodes_in_the_order_of_time(capsys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    logs.time.tzset()
    said = {
        "spark1": (told((100, "keeper", "one"), (300, "engine", "three")), 0),
        "spark2": (told((200, "ray", "two\nand more")), 0),
    }
    assert logs.show(arguments(logs), NODES, streams(said)) == 0
    assert capsys.readouterr().out == (
        "01-01 00:01:40 spark1 keeper: one\n"
        "01-01 00:03:20 spark2 ray: two\n    and more\n"
        "01-01 00:05:00 spark1 engine: three\n"
    )
    assert logs.show(arguments(logs, "--part", "ray", "--json"), NODES, streams(said)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"host": "spark2", "at": 200.0, "unit": "ray", "text": "two\nand more"}
    assert logs.show(arguments(logs, "--lines", "1"), NODES, streams(said)) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_a_node_that_does_not_answer_is_named(capsys):
    said = {"spark1": (told((1, "keeper", "one")), 0), "spark2": ("ssh: no route to host\n", 255)}
    assert logs.show(arguments(logs), NODES, streams(said)) == 1
    shown = capsys.readouterr()
    assert "keeper: one" in shown.out
    assert shown.err == "spark2: its logs are not known: ssh: no route to host\n"


def test_followed(capsys):
    said = {"spark1": (told((1, "keeper", "one")), 0), "spark2": ("", 0)}
    assert logs.show(arguments(logs, "--follow"), NODES, streams(said)) == 0
    assert capsys.readouterr().out.count("keeper: one") == 2


def test_who_follows_is_ended_when_nobody_listens(monkeypatch):
    reader, writer = os.pipe()
    gone = threading.Event()
    with open(writer, "w", encoding="utf-8") as output:
        monkeypatch.setattr(every_node.sys, "stdout", output)
        every_node.when_nobody_listens(gone.set)
        assert not gone.wait(0.1)
        os.close(reader)
        assert gone.wait(10)
        monkeypatch.undo()


def test_a_journal_that_is_no_longer_followed_is_ended():
    class Journal(Printed):
        killed = False

        def __enter__(self):
            return self

        def __exit__(self, *_exc):
            pass

        def kill(self):
            self.killed = True

    journal = Journal(journal_line(5, "sparkmatrix-ray.service", "one") + "\n" + journal_line(6, "x", "two"))
    entries = logs.follow(lambda *_argv, **_kw: journal)
    assert next(entries).text == "one" and not journal.killed
    entries.close()
    assert journal.killed


def test_parts_are_told_by_their_units():
    units = ["ray", "ray/raylet.out", "raylike", "fabric-restore-1.timer", "engine", "engine-chat", "keeper.timer"]
    found = {part: [unit for unit in units if logs.wanted(Entry(1, unit, "x"), [part])] for part in logs.PARTS}
    assert found == {"keeper": [], "engine": ["engine", "engine-chat"], "ray": ["ray", "ray/raylet.out"], "gateway": []}


@pytest.mark.parametrize("hostile", [{}, {"at": "1", "unit": "x", "text": "y"}, {"at": 1, "unit": [], "text": "y"}])
def test_a_node_that_says_something_else_is_not_shown(hostile):
    assert logs.read(hostile) is None


def test_what_acts_on_a_terminal_is_not_shown():
    entry = logs.read({"at": 1, "unit": "x\ny\x1b", "text": "\x1b[2Jz" + "a" * 9999})
    assert "\x1b" not in entry.text + entry.unit and "\n" not in entry.unit
    assert len(entry.text) == logs.WIDTH


def test_every_word_for_a_peer_is_one_that_it_may_say():
    for word, part in (("logs-last", "last"), ("logs-ray", "ray"), ("logs-follow", "follow")):
        assert forced_command.ALLOWED[word][-3:] == ("logs", "--peer", part)
    assert forced_command.ALLOWED["top"][-2:] == ("top", "--peer")


def test_only_root_and_only_nodes_that_are_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(logs.os, "geteuid", lambda: 1000)
    assert run_program(logs) == 1
    assert "sudo sparkmatrix logs" in capsys.readouterr().err
    assert every_node.hosts(str(tmp_path)) == {every_node.HERE: True}
    with pytest.raises(SparkError, match="no node spark9"):
        every_node.hosts(str(tmp_path), ["spark9"])


def test_colours_are_for_terminals():
    assert not word_colours.coloured({"NO_COLOR": "1"}, True)
    assert not word_colours.coloured({"TERM": "dumb"}, True)
    assert not word_colours.coloured({}, False)
    assert word_colours.coloured({"TERM": "xterm"}, True)
    assert word_colours.paint("it serves, ERROR") == "\x1b[32mit serves\x1b[0m, \x1b[31mERROR\x1b[0m"
    assert "\x1b[36mspark1" in logs.Shown(["spark1"], coloured=True)("spark1", Entry(1, "ray", "x"))


def test_no_rank_speaks_as_the_keeper():
    forged = journal_line(5, "sparkmatrix-engine.service", "x", UNIT="sparkmatrix-keeper.service", _PID="77")
    assert logs.parse(forged).unit == "engine"


def test_a_line_of_ray_that_only_looks_like_a_time(monkeypatch):
    text = "2026-99-99 99:99:99 no time\n9999-12-31 00:00:00 far\n"
    monkeypatch.setattr(logs.capture, "ray_logs", lambda _machine: {"/x/logs/raylet.out": text})
    assert [entry.text for entry in logs.ray_files(Machine())] == text.splitlines()


@pytest.mark.parametrize("at", [float("nan"), float("inf"), 1e300, 10**400, -5])
def test_a_time_that_is_none_is_not_shown(at):
    assert logs.read({"at": at, "unit": "engine", "text": "x"}) is None


def test_a_node_that_is_ahead_or_talks_without_end_takes_no_place_of_others(capsys, monkeypatch):
    monkeypatch.setattr(logs, "SPARE", 10)
    kept = []
    monkeypatch.setattr(
        logs, "sorted", lambda some, key: kept.append(len(some)) or sorted(some, key=key), raising=False
    )
    now = logs.time.time()
    said = {
        "spark1": (told((now + 30, "keeper", "of the head")), 0),
        "spark2": (told(*[(4e9, "engine", "flood")] * 500), 0),
    }
    assert logs.show(arguments(logs, "--lines", "3", "--json"), NODES, streams(said)) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 3 and all(one["at"] < now + 100 for one in found) and max(kept) < 40
