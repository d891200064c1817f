# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import foreign


def test_what_another_machine_prints_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A title, a clipboard, colours, an overwritten line: on both ways, and in bytes that are no text."""
    text = r"printf 'a\033]52;c;QQ==\007\r\nb\tc\rd\233\302\233é'; printf '\033[2J' >&2; exit 3"
    assert foreign.run(("sh", "-c", text)) == (3, "")
    shown = capsys.readouterr()
    assert shown.out == "a\\x1b]52;c;QQ==\\x07\nb\tc\\x0dd\ufffd\\x9bé" and shown.err == "\\x1b[2J"


def test_it_is_shown_as_it_comes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program goes on only when its first line is shown."""
    shown = tmp_path / "shown"
    monkeypatch.setattr(foreign.strict, "harmless", lambda text: shown.touch() or text)
    waits = f"for turn in $(seq 100); do test -e {shown} && break; sleep 0.1; done; test -e {shown}"
    assert foreign.run(("sh", "-c", rf"printf 'on\r'; {waits} && printf '\ne'"))[0] == 0
    assert capsys.readouterr().out == "on\r\ne"


def test_it_is_given_its_input_and_need_not_read_it() -> None:
    much = "é" * 500_000
    assert foreign.run(("wc", "-c"), much, keep=True) == (0, "1000000\n")
    assert foreign.run(("true",), much, keep=True) == (0, "")


def test_what_never_ends_is_ended() -> None:
    with pytest.raises(SparkError, match="more than"):
        foreign.run(("yes",), keep=True)


def test_nobody_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sparkmatrix ask … | head -1`"""

    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        foreign.run(("yes",))
