# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _settled as settled
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.secret import fingerprint
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import profile as qos_profile
from engine_plans import PLAN

RAY, KEEPER = "sparkmatrix-ray.service", "sparkmatrix-keeper.service"
INSTALLED = ["sparkmatrix-engine.service", KEEPER]
RUNS = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", "MainPID": "7"}


class Node(Machine):
    """Ray and a keeper run with a configuration, and the keeper serves."""

    def __init__(self, root):
        self.states = {RAY: {**RUNS, "UnitFileState": "static"}, KEEPER: dict(RUNS)}
        super().__init__(str(root), self.systemctl)
        self.write("proc/7/environ", f"A=b\0{HASH_VARIABLE}=abc\0")
        self.write("var/lib/sparkmatrix/keeper/state.json", json.dumps({"phase": "serving"}))

    def systemctl(self, argv):
        shown = [self.states[name] for name in argv[argv.index("--") + 1 :]]
        return Completed(0, "\n\n".join("\n".join(f"{key}={value}" for key, value in one.items()) for one in shown))

    def write(self, path, text):
        place = Path(self.real(f"/{path}"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_what_runs_and_with_what(node):
    found = settled.units(node, INSTALLED)
    assert found[RAY] == {"enabled": False, "config_hash": "abc", "serving": False}
    assert found[KEEPER] == {"enabled": True, "config_hash": "abc", "serving": True}


@pytest.mark.parametrize(
    "change", [{"ActiveState": "failed"}, {"ActiveState": "activating"}, {"NeedDaemonReload": "yes"}, {"Job": "12"}]
)
def test_a_unit_that_something_is_to_be_done_about_is_left_out(node, change):
    node.states[KEEPER].update(change)
    assert list(settled.units(node, INSTALLED)) == [RAY]


def test_a_unit_that_a_run_has_stopped_for_a_while_is_left_out(node):
    node.write("run/systemd/transient/sparkmatrix-keeper-return.timer", "")
    assert list(settled.units(node, INSTALLED)) == [RAY]


@pytest.mark.parametrize("state", ["{", "[]", json.dumps({"phase": "starting"})])
def test_a_keeper_that_does_not_say_that_it_serves(node, state):
    node.write("var/lib/sparkmatrix/keeper/state.json", state)
    assert settled.units(node, INSTALLED)[KEEPER]["serving"] is False


def test_the_names_in_etc_hosts(node):
    block = "# BEGIN sparkmatrix.cluster peers\n192.0.2.2 spark2\n# END sparkmatrix.cluster peers\n"
    node.write("etc/hosts", f"127.0.0.1 localhost\n{block}::1 x\n")
    assert settled.gather(node, INSTALLED)["names"] == ["192.0.2.2 spark2"]
    marker = yaml.safe_load((Path(__file__).parents[4] / "roles/peers/vars/main.yml").read_text())[
        "__peers_hosts_marker"
    ]
    assert marker.format(mark="BEGIN") == block.splitlines()[0]


def test_the_plan_that_is_kept(tmp_path, node):
    assert settled.plan(node) is None
    kept_plan.keep(PLAN, str(tmp_path))
    assert settled.plan(node) == {"identity": PLAN.identity, "image_ids": {}}


def test_whether_anything_is_left_of_a_qos_profile(node):
    """A removal that was cut off has lost the files, and still keeps what the interfaces had before."""
    assert settled.gather(node, INSTALLED)["qos"] is True
    node.write("var/lib/sparkmatrix/fabric_qos.json", "{}")
    assert settled.gather(node, INSTALLED)["qos"] is False
    assert (qos_profile.RECORD, qos_profile.SET) == ("/var/lib/sparkmatrix/fabric_qos.json", settled.QOS)


def test_the_token_of_ray(node):
    assert settled.gather(node, INSTALLED)["secrets"]["ray_token"] is None
    node.write("etc/sparkmatrix/ray.token", "a" * 40 + "\n")
    place = Path(node.real("/etc/sparkmatrix/ray.token"))
    place.chmod(0o640)
    assert settled.gather(node, INSTALLED)["secrets"]["ray_token"] is None
    place.chmod(0o600)
    found = settled.gather(node, INSTALLED)["secrets"]["ray_token"]
    assert found == {"mark": fingerprint("a" * 40), "owner": f"{place.owner()}:{place.group()}"}
    place.write_text("")
    assert settled.gather(node, INSTALLED)["secrets"]["ray_token"] is None


def test_what_cannot_be_read_is_left_out(tmp_path):
    found = settled.gather(Machine(str(tmp_path), lambda _argv: Completed(127, "", "not found")), INSTALLED)
    assert "units" not in found and "peer" not in found  # no systemd, no host key
    assert (found["files"], found["names"], found["plan"]) == ({}, [], None)
