# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan as kept


def plan(mark, **more):
    return {"engine": {"config_hash": mark}, "ray": {"config_hash": "r"}, "image": "", "recipe": "x", **more}


def test_the_one_before_is_kept(tmp_path):
    root = str(tmp_path)
    assert kept.read(root) == {"current": {}, "previous": {}}
    assert kept.keep(plan("a"), root, check_mode=True)
    assert kept.read(root)["current"] == {}
    assert kept.keep(plan("a", memory={"total": 4}), root)
    assert not kept.keep(plan("a", memory={"total": 5}), root)
    # As an earlier release kept it.
    assert kept.keep(plan("a"), root)
    assert kept.read(root) == {"current": plan("a"), "previous": {}}
    assert kept.keep(plan("b"), root)
    assert kept.read(root) == {"current": plan("b"), "previous": plan("a")}
    assert kept.keep(plan("a"), root)
    assert kept.read(root) == {"current": plan("a"), "previous": plan("b")}


def test_ids_of_images_are_kept_and_make_no_step(tmp_path):
    root = str(tmp_path)
    assert kept.keep(plan("a", image_ids={"x": "sha256:1"}), root)
    assert not kept.keep(plan("a", image_ids={"x": "sha256:1"}), root)
    assert kept.keep(plan("a", image_ids={"x": "sha256:2"}), root)
    assert kept.read(root) == {"current": plan("a", image_ids={"x": "sha256:2"}), "previous": {}}


def test_both_are_put_back(tmp_path):
    root = str(tmp_path)
    for mark in "abc":
        kept.keep(plan(mark), root)
    assert kept.put(plan("b"), plan("a"), root, check_mode=True)
    assert kept.read(root)["current"] == plan("c")
    assert kept.put(plan("b"), plan("a"), root)
    assert not kept.put(plan("b"), plan("a"), root)
    assert kept.read(root) == {"current": plan("b"), "previous": plan("a")}
    assert kept.put(plan("b"), {}, root)
    assert kept.read(root) == {"current": plan("b"), "previous": {}}


def test_an_image_and_a_container_make_another_plan(tmp_path):
    assert kept.identity(plan("a")) != kept.identity(plan("a", image="i@sha256:1"))
    assert kept.identity(plan("a")) != kept.identity(plan("a", container={"text": "services"}))


def test_all_nodes_take_the_same_step():
    # The part of this node stays as it was, that of another one changes.
    assert kept.identity(plan("a", identity="x")) != kept.identity(plan("a", identity="y"))


def test_which_services_differ():
    def of(mark, name="", **more):
        return plan(mark, role="head", names={"instance": name}, identity="changes with any", **more)

    assert kept.differing({}, {}) == kept.differing({"role": "idle"}, {}) == []
    assert kept.differing(of("a"), of("b")) == [""]
    assert kept.differing(of("a", "chat", beside=[of("s", "small")]), of("a", "chat", beside=[of("t", "small")])) == [
        "small"
    ]
    assert kept.differing(of("a", "chat"), of("a", "code")) == ["chat", "code"]
    assert kept.differing({**of("a", "chat"), "identity": "another"}, of("a", "chat")) == []


def test_which_services_there_are():
    def of(*names):
        first, *others = [plan("a", role="head", names={"instance": name}) for name in names]
        return {**first, "beside": others}

    assert kept.services({}, {"role": "idle"}) == kept.services(of("")) == []
    assert kept.services(of("chat", "small"), of("chat", "code"), of("")) == ["chat", "code", "small"]


def test_forget(tmp_path):
    root = str(tmp_path)
    assert not kept.forget(root)
    kept.keep(plan("a"), root)
    assert kept.forget(root, check_mode=True)
    assert kept.forget(root)
    assert not kept.forget(root)


def test_a_damaged_file_is_named(tmp_path):
    kept.keep(plan("a"), str(tmp_path))
    (tmp_path / "var/lib/sparkmatrix/plan/current.json").write_text("{")
    with pytest.raises(SparkError, match=r"current\.json"):
        kept.read(str(tmp_path))
