# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import systemd_quoting
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)


def split_like_systemd(line):
    """What systemd makes of a command line: words, quotes with C escapes, then %% and $$."""
    words, word, position, quoted = [], None, 0, False
    while position < len(line):
        character = line[position]
        if quoted and character == "\\":
            rest = line[position + 1 :]
            if rest[0] == "x":
                word += chr(int(rest[1:3], 16))
                position += 4
            else:
                word += {"n": "\n", "t": "\t", "r": "\r"}.get(rest[0], rest[0])
                position += 2
            continue
        if character == '"':
            quoted = not quoted
            word = word or ""
        elif character == " " and not quoted:
            words.append(word)
            word = None
        else:
            word = (word or "") + character
        position += 1
    words.append(word)
    assert not quoted
    return [part.replace("%%", "%").replace("$$", "$") for part in words]


def read_environment_file(text):
    values = {}
    for name, value in re.findall(r'^([A-Za-z_]\w*)="((?:[^"\\]|\\["\\`$])*)"\n', text, flags=re.MULTILINE):
        values[name] = re.sub(r'\\(["\\`$])', r"\1", value)
    return values


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--port", "--port"),
        ("a b", '"a b"'),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ("", '""'),
        ("back\\slash", '"back\\\\slash"'),
        ("two\nlines\x01", '"two\\nlines\\x01"'),
        (";", '";"'),
    ],
)
def test_argument(argument, expected):
    assert systemd_quoting.argument(argument) == expected


@given(st.lists(TEXT, max_size=5))
def test_a_command_comes_back_as_it_was(words):
    argv = ["/bin/program", *words]
    line = systemd_quoting.command(argv)
    assert "\n" not in line
    assert split_like_systemd(line) == argv


@given(st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,9}\Z"), TEXT, max_size=5))
def test_an_environment_comes_back_as_it_was(values):
    assert read_environment_file(systemd_quoting.environment_file(values)) == values


@pytest.mark.parametrize("argv", [[], ["vllm"], ["./vllm"]])
def test_the_program_is_an_absolute_path(argv):
    with pytest.raises(SparkError, match="absolute"):
        systemd_quoting.command(argv)


@pytest.mark.parametrize("values", [{"A B": "x"}, {"1A": "x"}, {"A": "\0"}])
def test_bad_environment(values):
    with pytest.raises(SparkError):
        systemd_quoting.environment_file(values)


def test_nul_in_an_argument():
    with pytest.raises(SparkError, match="NUL"):
        systemd_quoting.argument("a\0b")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/opt/m", "/opt/m"), ("/a b", '"/a b"'), ("/50%/$x", "/50%%/$x")],
)
def test_paths(path, expected):
    assert systemd_quoting.path(path) == expected


@pytest.mark.parametrize("path", ["models", "/a\nExecStart=/x", '/a"b', "/a\\b", "-/a"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(SparkError, match="no path"):
        systemd_quoting.path(path)
