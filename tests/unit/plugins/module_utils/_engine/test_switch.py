# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand, kept_plan, switch
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Offer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.switch import Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import in_place, peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Before
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, apply_set
from engine_plans import PLAN

ENV, UNIT = "/etc/sparkmatrix/engine.env", "/etc/systemd/system/sparkmatrix-engine.service"


class Node:
    """It has served by plan ``a``, and serves by plan ``b``."""

    def __init__(self, root):
        self.root, self.did, self.images = root, [], {"sha256:a"}
        (root / "etc/systemd/system").mkdir(parents=True)
        self.description = (root / "etc/sparkmatrix/engine.json", "/etc/sparkmatrix/engine.json")
        self.serve("a", image_ids={"x:v1": "sha256:a"})
        self.serve("b", image_ids={"x:v1": "sha256:b"})

    def serve(self, identity, **more):
        told = json.dumps({**DESCRIPTION, "config_hash": f"hash of {identity}"})
        files = [
            File(ENV, identity.encode()),
            File(UNIT, b"[Unit]\n"),
            File(self.description[1], told.encode()),
        ]
        own = {"owner": str(self.root.stat().st_uid), "group": str(self.root.stat().st_gid)}
        apply_set(at_hand.SET, [replace(item, **own) for item in files], root=str(self.root))
        plan = replace(PLAN, identity=identity, here=(replace(PLAN.here[0], models=()),), **more)
        kept_plan.keep(plan, str(self.root))
        before = kept_plan.read(str(self.root)).previous
        at_hand.keep(plan, {before.identity} if before else (), str(self.root))

    @property
    def machine(self):
        def run(argv, *_more, **_options):
            self.did.append(" ".join(argv[:2]))
            if argv[:3] == ["docker", "image", "inspect"]:
                there = argv[3] in self.images or argv[3] == "x:v1"
                told = json.dumps([{"Id": argv[3], "Os": "linux", "Architecture": "arm64"}])
                return Completed(0, told) if there else Completed(1, "", "No such image")
            return Completed(0, "")

        return Machine(str(self.root), run)

    @property
    def served(self):
        return (self.root / ENV.lstrip("/")).read_text()


DESCRIPTION = {
    "schema": 1,
    "host": "127.0.0.1",
    "port": 8000,
    "model": "m",
    "key_file": "/key",
    "units": [],
    "members": [{"host": "spark1", "rank": 0, "address": "10.0.0.1", "runs_here": True, "ranks": True}],
}


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_files_image_and_plan_of_before_are_in_place_again(node):
    assert in_place.before(node.machine) == Before("a", "hash of a")
    assert node.served == "b", "a look changes nothing"
    switch.place(Wanted("a"), node.machine)
    assert node.served == "a"
    kept = kept_plan.read(str(node.root))
    assert (kept.current.identity, kept.previous.identity) == ("a", "b")
    assert "docker tag" in node.did
    switch.place(Wanted("a"), node.machine)  # once more, as whoever comes after one that was killed does
    assert kept_plan.read(str(node.root)) == kept
    # From there the other one can be come back to in the same way.
    node.images.add("sha256:b")
    assert in_place.before(node.machine) == Before("b", "hash of b")


def damaged(node):
    (node.root / at_hand.path("", "a").lstrip("/")).write_text("{")


def foreign(node):
    where = node.root / at_hand.path("", "a").lstrip("/")
    where.write_text(where.read_text().replace(ENV, "/etc/shadow"))


REFUSED = {
    "nothing was there before": (lambda node: kept_plan.forget(str(node.root)), "no files of the earlier plan"),
    "the gateway would have to follow": (
        lambda node: node.serve("c", services=(Offer("n", "other", "h", 1, True, "generate", "/k"),)),
        "others would have to follow: gateway",
    ),
    "its image is gone": (lambda node: node.images.clear(), "not here any more"),
    "its files are damaged": (damaged, "are damaged"),
    "a file that is none of an engine": (foreign, "not what was written"),
    "its files are of a time before this": (
        lambda node: (node.root / at_hand.path("", "a").lstrip("/")).unlink(),
        "no files of the earlier plan",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_come_back_changes_nothing(node, spoil, words):
    spoil(node)
    before = node.served
    kept = kept_plan.read(str(node.root)).previous
    with pytest.raises(SparkError, match=words):
        switch.place(Wanted(kept.identity if kept else "a"), node.machine)
    assert node.served == before


def test_a_look_that_nobody_waits_for_any_more_ends(monkeypatch):
    """At files that an engine may have made it could last: the next one begins beside it a minute later."""
    ended = []
    monkeypatch.setattr(switch.signal, "alarm", ended.append)
    monkeypatch.setattr(switch, "check", lambda *_asked: None)
    monkeypatch.setattr(switch, "place", lambda *_asked: None)
    for action in (switch.CHECK, switch.PLACE):
        monkeypatch.setattr(switch.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(Wanted("p", "m").text.encode())))
        assert switch.run(SimpleNamespace(action=action)) == 0
    assert ended == [int(peers.CHECK_S), 0, 0]


def test_files_of_plans_that_are_kept_no_more_go(node):
    for identity in "cd":
        node.serve(identity)
    found = {one.name for one in (node.root / at_hand.SERVED.lstrip("/")).glob("files-*")}
    assert found == {at_hand.path("", identity).rsplit("/", 1)[1] for identity in "cd"}
    kept_plan.forget(str(node.root))
    assert not (node.root / at_hand.SERVED.lstrip("/")).exists()
