# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The callback ``page`` in real runs of ansible-playbook, on a playbook that does a little of everything. Most of it is
``raw``: a module would be packed and started with a Python of its own each time."""

from __future__ import annotations

import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSIBLE = pathlib.Path(sys.executable).parent / "ansible-playbook"
pytestmark = pytest.mark.slow
FULL = pytest.mark.full

PLAYBOOK = """\
- name: Do a little of everything
  hosts: all
  gather_facts: false
  connection: local
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
    - name: topic | Look
      ansible.builtin.raw: "true"
      changed_when: false

    - name: Leave it out
      ansible.builtin.raw: "true"
      when: false

    - name: topic | Place a file
      ansible.builtin.copy:
        content: "one\\ntwo\\n"
        dest: "{{ folder }}/{{ inventory_hostname }}"
        mode: '0600'

    - name: Keep a secret
      ansible.builtin.raw: echo s3cret
      no_log: true

    - name: Try
      block:
        - name: Go into another file
          ansible.builtin.include_tasks: more.yml
      rescue:
        - name: Say so
          ansible.builtin.debug:
            msg: ["It is mended.", "  All of it."]

    - name: Wait
      ansible.builtin.raw: sleep 3
      changed_when: false
      when: wait | default(false)

    - name: Refuse
      ansible.builtin.fail:
        msg: "Nothing fits:\\n  1. this"
      when: refuse | default(false)
"""


MORE = """\
- name: Fail on both
  ansible.builtin.raw: printf "\\033]0;mine\\007" >&2; echo broken >&2; false
"""


def play(tmp_path: pathlib.Path, *options: str, terminal: bool = False, **variables: str) -> tuple[int, str, str]:
    """Exit code, screen, and the only log of the run."""
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "little.yml").write_text(PLAYBOOK)
    (tmp_path / "more.yml").write_text(MORE)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),  # from another folder
        "SPARKMATRIX_LOG_FOLDER": str(tmp_path / "logs"),
        "TERM": "xterm",
        **variables,
    }
    words = [str(ANSIBLE), "little.yml", *options, "-i", "spark1,spark2", "-e", f"folder={tmp_path}/work"]
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.STDOUT
    )
    os.close(theirs)
    screen = b""
    while part := read(ours):
        screen += part
    os.close(ours)
    logs = list((tmp_path / "logs").glob("*")) if (tmp_path / "logs").is_dir() else []
    text = logs[0].read_text() if logs else ""
    return process.wait(60), screen.decode(), text


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # a terminal that nobody has any more
        return b""


def test_a_run_is_a_page_and_its_log_has_everything(tmp_path: pathlib.Path) -> None:
    code, screen, log = play(tmp_path)
    # What Ansible says of an exit code differs between its versions.
    lines = re.sub(r"below: .* (?=\S+broken)", "below: ", re.sub(r"\d+ s", "N s", screen)).splitlines()
    assert lines[1].startswith("  changed  Place a file: /") and lines[1].endswith("(2 nodes, N s)")
    assert lines[:1] + lines[2:-1] == [
        "Do a little of everything",
        "  changed  Keep a secret (2 nodes, N s)",
        "  failed   Fail on both (2 nodes, N s), dealt with below: \\x1b]0;mine\\x07broken",
        "  It is mended.",
        "    All of it.",
    ]
    last = screen.splitlines()[-1]
    assert code == 0 and re.match(r"Done in [^;]+; 2 steps changed something\. Whole log: ", last)
    assert list((tmp_path / "logs").glob("*-little.log")) == [pathlib.Path(last.rpartition(" ")[2])]
    for said in ("TASK [topic | Look]", "skipping: [spark1]", "changed: [spark2]", "broken", "PLAY RECAP", "rescued=1"):
        assert said in log
    assert "s3cret" not in screen + log and "no_log" in log


def test_a_refusal_is_a_block_and_diffs_are_shown(tmp_path: pathlib.Path) -> None:
    code, screen, log = play(tmp_path, "-e", '{"refuse": true}', "--check", "--diff")
    lines = re.sub(r"\d+ s", "N s", screen).splitlines()
    assert code == 2
    at = lines.index("  FAILED   Refuse (2 nodes, N s)")
    assert lines[at + 1 : at + 3] == ["  Nothing fits:", "    1. this"]
    assert lines[at + 3] == "Next: mend this, then the same command again"
    assert lines[at + 4].startswith("FAILED after N s. Whole log: ") and len(lines) == at + 5
    assert "      +one" in lines and any(line.startswith("  differs  Place a file: ") for line in lines)
    assert "Origin" not in screen and "ERROR" not in screen and "Nothing fits" in log


def test_on_a_terminal_a_line_moves_and_has_colours(tmp_path: pathlib.Path) -> None:
    _code, screen, log = play(tmp_path, "-e", '{"wait": true}', terminal=True)
    assert re.search(r"\r  \.\.\.      Wait: \d+ s\x1b\[K\r", screen) and "\x1b[0;33m  changed" in screen
    assert "..." not in log and "\x1b" not in log


@FULL
def test_on_a_terminal_that_can_nothing_nothing_moves_or_is_coloured(tmp_path: pathlib.Path) -> None:
    _code, screen, _log = play(tmp_path, terminal=True, NO_COLOR="1", TERM="dumb")
    assert "\x1b" not in screen and "Wait" not in screen


@FULL
def test_each_of_several_playbooks_has_its_page_and_its_log(tmp_path: pathlib.Path) -> None:
    (tmp_path / "second.yml").write_text("[{hosts: all, gather_facts: false, tasks: [{debug: {msg: the last one}}]}]")
    code, screen, _log = play(tmp_path, "second.yml")
    assert code == 0, screen
    ends = [line for line in screen.splitlines() if line.startswith("Done in ")]
    assert "2 steps changed" in ends[0] and "nothing was changed" in ends[1]
    (log,) = (tmp_path / "logs").glob("*-little.log")
    assert ends[0].endswith(str(log)) and "the last one" not in log.read_text()


@FULL
def test_with_vvv_the_screen_is_ansibles_own(tmp_path: pathlib.Path) -> None:
    _code, screen, _log = play(tmp_path, "-vvv")
    assert "PLAY RECAP" in screen and "TASK [topic | Look]" in screen
    assert screen.splitlines()[-1].startswith("Done in ")


@FULL
def test_a_log_that_cannot_be_written_is_a_warning(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    code, screen, _log = play(tmp_path, SPARKMATRIX_LOG_FOLDER=str(tmp_path / "file/logs"), ANSIBLE_NOCOLOR="1")
    assert code == 0 and "No log is written: " in screen
    assert re.match(r"Done in [^;]+; 2 steps changed something\.$", screen.splitlines()[-1])
