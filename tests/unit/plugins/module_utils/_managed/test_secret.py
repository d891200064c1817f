# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import grp
import os
import pwd

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as cs
from hypothesis import given
from hypothesis import strategies as st

GIVEN = "a-secret-of-the-users-own"


@pytest.fixture
def wanted():
    owner, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name

    def make(**values):
        return cs.Wanted(**{"name": "token", "path": "/etc/x/token", "owner": owner, "group": group, **values})

    return make


def test_made_once_and_kept(wanted, tmp_path):
    first = cs.ensure(wanted(), root=str(tmp_path))
    again = cs.ensure(wanted(), root=str(tmp_path))
    path = tmp_path / "etc/x/token"
    assert first.changed
    assert not again.changed
    assert first.secret == again.secret == path.read_text().strip()
    assert len(first.secret) >= 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.fingerprint == again.fingerprint
    assert len(first.fingerprint) == 12


def test_the_given_one_wins(wanted, tmp_path):
    cs.ensure(wanted(), root=str(tmp_path))
    carried = cs.ensure(wanted(value=GIVEN, required=True), root=str(tmp_path))
    assert carried.secret == GIVEN
    assert carried.changed
    assert GIVEN not in str(carried.diff)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"short\n", "damaged"),
        (b"two\nlines-of-some-length\n", "damaged"),
        (b"with space in the middle\n", "damaged"),
        (b"\xff\xfe" * 20, "damaged"),
    ],
)
def test_a_damaged_file_is_refused_and_stays(wanted, tmp_path, content, what):
    (tmp_path / "etc/x").mkdir(parents=True)
    (tmp_path / "etc/x/token").write_bytes(content)
    for check_mode in (True, False):
        with pytest.raises(SparkError, match=f"the file is {what}.*remove the file"):
            cs.ensure(wanted(), check_mode=check_mode, root=str(tmp_path))
    assert (tmp_path / "etc/x/token").read_bytes() == content
    assert cs.ensure(wanted(value=GIVEN), root=str(tmp_path)).secret == GIVEN  # the head's is known


def test_another_one_than_before_is_told(wanted, tmp_path):
    assert not cs.ensure(wanted(), root=str(tmp_path)).replaced
    assert not cs.ensure(wanted(), root=str(tmp_path)).replaced
    (tmp_path / "etc/x/token").unlink()
    assert cs.ensure(wanted(), check_mode=True, root=str(tmp_path)).replaced
    assert cs.ensure(wanted(), root=str(tmp_path)).replaced
    # After a reset nobody has one.
    cs.remove(wanted(), root=str(tmp_path))
    assert not cs.ensure(wanted(), root=str(tmp_path)).replaced


def test_a_directory_in_its_place(wanted, tmp_path):
    (tmp_path / "etc/x/token").mkdir(parents=True)
    with pytest.raises(SparkError, match="cannot be read"):
        cs.ensure(wanted(), root=str(tmp_path))


def test_check_mode_makes_nothing_and_tells_nothing(wanted, tmp_path):
    planned = cs.ensure(wanted(), check_mode=True, root=str(tmp_path))
    assert planned.changed
    assert (planned.secret, planned.fingerprint) == ("", "")
    assert not (tmp_path / "etc").exists()
    assert cs.ensure(wanted(required=True), check_mode=True, root=str(tmp_path)).secret == ""


def test_a_worker_invents_none(wanted, tmp_path):
    with pytest.raises(SparkError, match="no secret to place"):
        cs.ensure(wanted(required=True), root=str(tmp_path))


@pytest.mark.parametrize(
    "values", [{"value": "tiny-0815"}, {"value": "with space in it, longer"}, {"value": 'a"' * 10}, {"variable": "A B"}]
)
def test_what_cannot_be_written_safely(wanted, tmp_path, values):
    with pytest.raises(SparkError) as caught:
        cs.ensure(wanted(**values), root=str(tmp_path))
    assert values.get("value", "\0") not in str(caught.value)


def test_remove_brings_back(wanted, tmp_path):
    (tmp_path / "etc/x").mkdir(parents=True)
    (tmp_path / "etc/x/token").write_text("before\n")
    cs.ensure(wanted(value=GIVEN), root=str(tmp_path))
    assert cs.remove(wanted(), root=str(tmp_path)).changed
    assert (tmp_path / "etc/x/token").read_text() == "before\n"
    assert not cs.remove(wanted(), root=str(tmp_path)).changed


def test_parse_wants_the_right_variable():
    assert cs.parse(f'A="{GIVEN}"\n', "A") == GIVEN
    assert cs.parse(f'B="{GIVEN}"\n', "A") == ""
    assert cs.parse(GIVEN, "A") == ""


@given(st.from_regex(r"\A[A-Za-z0-9._~+/=-]{16,60}\Z"), st.sampled_from(["", "NAME"]))
def test_what_is_written_is_read(secret, variable):
    assert cs.parse(cs.render(secret, variable), variable) == secret


def test_one_of_another_layer_is_looked_at_and_not_taken_over(wanted, tmp_path):
    assert cs.read(wanted(), root=str(tmp_path)).fingerprint == ""
    made = cs.ensure(wanted(name="gateway"), root=str(tmp_path))
    found = cs.read(wanted(name="web_ui"), root=str(tmp_path))
    assert found.fingerprint == made.fingerprint and not found.changed
    assert cs.names(root=str(tmp_path)) == ["gateway"]
