# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.exposition import Sample, text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import publish

KNOWN = {"a_total": "Counts.", "b": "Is."}


def test_the_text_has_each_metric_once_with_its_kind():
    made = text(KNOWN, [Sample("b", True, {"x": "1"}), Sample("a_total", 2**60), Sample("b", 0.25, {"x": "2"})])
    assert made == (
        "# HELP a_total Counts.\n# TYPE a_total counter\na_total 1152921504606846976\n"
        '# HELP b Is.\n# TYPE b gauge\nb{x="1"} 1\nb{x="2"} 0.25\n'
    )


@pytest.mark.parametrize(
    ("label", "printed"),
    [
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("two\nlines\x1b[31m", '"two lines?[31m"'),
        ("x" * 500, f'"{"x" * 200}"'),
    ],
)
def test_a_label_is_one_line_whatever_it_says(label, printed):
    assert text(KNOWN, [Sample("b", 1, {"why": label})]).splitlines()[-1] == f"b{{why={printed}}} 1"


def test_what_would_make_the_collector_refuse_the_file_is_not_written():
    nothing = [Sample("b", float("nan")), Sample("b", float("inf"))]
    assert text(KNOWN, nothing) == ""
    assert text(KNOWN, [Sample("b", 1), Sample("b", 2)]).splitlines()[-1] == "b 2"
    with pytest.raises(ValueError, match="not in the catalogue"):
        text(KNOWN, [Sample("c", 1)])
    with pytest.raises(ValueError, match="no name of a label"):
        text(KNOWN, [Sample("b", 1, {"a b": "1"})])


def test_the_file_is_replaced_in_one_step_and_everybody_may_read_it(tmp_path):
    place = tmp_path / "node.prom"
    old = os.umask(0o077)
    try:
        publish(str(place), "b 1\n")
        publish(str(place), "b 2\n")
    finally:
        os.umask(old)
    assert place.read_text() == "b 2\n"
    assert place.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["node.prom"]
    with pytest.raises(OSError, match="No such file"):
        publish(str(tmp_path / "gone/node.prom"), "")


def test_the_file_follows_no_link_of_the_collectors_user(tmp_path):
    victim = tmp_path / "shadow"
    victim.write_text("secret")
    victim.chmod(0o600)
    folder = tmp_path / "textfile"
    folder.mkdir()
    (folder / ".sparkmatrix.prom.new").symlink_to(victim)
    (folder / "sparkmatrix.prom").symlink_to(victim)
    publish(str(folder / "sparkmatrix.prom"), "x 1\n")
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("secret", 0o600)
    written = folder / "sparkmatrix.prom"
    assert (written.read_text(), written.stat().st_mode & 0o777, written.is_symlink()) == ("x 1\n", 0o644, False)
