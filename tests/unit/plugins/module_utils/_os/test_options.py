# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import options as os_options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.options import Options, parse
from hypothesis import given
from hypothesis import strategies as st

ROLE = Path(__file__).parents[5] / "roles/os_stabilization"
# Read by the role's tasks, not by the module.
TASKS_ONLY = {"reboot"}


def role_defaults():
    values = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    return {name.removeprefix("os_stabilization_"): value for name, value in values.items()}


def test_defaults_are_those_of_the_role():
    assert parse({name: value for name, value in role_defaults().items() if name not in TASKS_ONLY}) == Options()
    assert parse({}) == Options()


def test_every_variable_reaches_the_module():
    assert set(role_defaults()) - TASKS_ONLY == set(os_options.NAMES)
    handed = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__os_stabilization_options"]
    assert handed == {name: f"{{{{ os_stabilization_{name} }}}}" for name in os_options.NAMES}
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = {name.removeprefix("os_stabilization_"): option["default"] for name, option in specs.items()}
    assert defaults == role_defaults()


def test_every_variable_is_documented():
    table = (ROLE / "README.md").read_text().partition("| Topic |")[2].partition("\n\n")[0]
    assert [name for name in role_defaults() if f"`{name}`" not in table] == []


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("swap_policy", False, "off"),  # YAML: off without quotes
        ("earlyoom", "no", "off"),
        ("upgrades", False, "off"),
        ("limits", "yes", True),
        ("limits", "0", False),
        ("memlock", 8192, "8192"),
        ("nofile", 16384, "16384"),
        ("nofile", "1: 2", "1:2"),
        ("sysctl", {"vm.max_map_count": ">= 5", "kernel.x.y": 1}, {"vm.max_map_count": ">=5", "kernel.x.y": "1"}),
        ("known_good", {"nvidia-*": "580.*"}, {"nvidia-*": ("580.*",)}),
        ("memory_min_mib", {"user.slice": "0"}, {"user.slice": 0}),
    ],
)
def test_values(name, given, expected):
    assert getattr(parse({name: given}), name) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limits", "perhaps"),
        ("headless", True),
        ("watchdog_available_mib", 63),
        ("memlock", "lots"),
        ("nofile", "a"),
        ("nofile", "2:1"),
        ("memory_min_mib", []),
        ("memory_min_mib", {"ssh": 1}),
        ("memory_min_mib", {"ssh.service": -1}),
        ("gpu_clock_max_mhz", 200),
        ("known_good", {"a b/": []}),
        ("known_good", {"a": {}}),
        ("sysctl", {"net.x": 1}),
        ("sysctl", {"vm.x": "<5"}),
        ("nothing", 1),
    ],
)
def test_refusals(name, value):
    with pytest.raises(SparkError, match=f"os_stabilization_{name}"):
        parse({name: value})


@given(
    st.dictionaries(st.sampled_from(os_options.NAMES), st.one_of(st.none(), st.text(), st.integers(), st.booleans()))
)
def test_anything_is_taken_or_refused(values):
    try:
        parse(values)
    except SparkError as exc:
        assert all(f"os_stabilization_{name}" in str(exc) or name in os_options.NAMES for name in values)
