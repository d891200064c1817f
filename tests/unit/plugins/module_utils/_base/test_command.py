# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
import time

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import (
    Completed,
    run,
    run_limited,
    search_path,
)


def test_output_and_exit_code():
    code = "import os, sys; print(os.environ['LC_ALL']); print('oh\\n no', file=sys.stderr); sys.exit(3)"
    done = run([sys.executable, "-c", code])
    assert (done.rc, done.out, done.complaint) == (3, "C\n", "oh no")


def test_missing_program():
    done = run(["/nonexistent/tool"])
    assert (done.rc, done.complaint) == (127, "/nonexistent/tool: No such file or directory")


def test_what_hangs_is_left_behind():
    started = time.monotonic()
    done = run([sys.executable, "-c", "import time; time.sleep(30)"], timeout_s=0.2)
    assert (done.rc, "gave no answer within 0.2 s" in done.complaint) == (124, True)
    assert time.monotonic() - started < 10


ENDLESS = "import sys\nwhile True: sys.stdout.write('x' * 4096)"


@pytest.mark.parametrize(
    ("program", "rc", "complaint"),
    [
        ("import sys; print('a'); sys.stdout.flush(); print('b', file=sys.stderr); sys.exit(3)", 3, "a b"),
        ("import sys; sys.stdout.buffer.write(b'\\xfc')", 0, "\ufffd"),
        (ENDLESS, 1, "it printed more than 5000 bytes"),
        ("import time; time.sleep(20)", 124, "gave no answer within 2 s"),
        ("import os, time; os.close(1); os.close(2); time.sleep(20)", 124, "gave no answer within 2 s"),
    ],
)
def test_what_a_stranger_prints_has_limits(program, rc, complaint):
    done = run_limited([sys.executable, "-c", program], 2.0, 5000)
    assert (done.rc, complaint in done.complaint) == (rc, True)


def test_a_stranger_is_told_a_line():
    program = "import sys; print(sys.stdin.read() * 2)"
    assert run_limited([sys.executable, "-c", program], 9.0, 5000, "a\n").out == "a\na\n\n"
    assert run_limited(["true"], 9.0, 10, "x" * 10**6).rc == 0  # it does not listen


def test_missing_program_of_a_stranger():
    assert run_limited(["/nonexistent/tool"], 1.0, 10).rc == 127


@pytest.mark.parametrize(
    ("done", "complaint"),
    [(Completed(1, "out"), "out"), (Completed(1), "it printed nothing"), (Completed(1, "a", "b"), "b")],
)
def test_complaint(done, complaint):
    assert done.complaint == complaint


def test_system_directories_are_searched(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert search_path().startswith("/usr/bin:/bin:")
    assert "/usr/sbin" in search_path().split(":")
    monkeypatch.setenv("PATH", "")
    assert search_path().split(":")[0] == "/usr/local/sbin"
