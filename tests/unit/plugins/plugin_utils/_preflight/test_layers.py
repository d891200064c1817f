# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers

ALL = list(preflight_layers.LAYERS)


@pytest.mark.parametrize(
    ("playbook_layers", "run_tags", "skip_tags", "expected"),
    [
        pytest.param([], ["all"], [], ALL, id="no-tags"),
        pytest.param([], [], [], ALL, id="nothing-given"),
        pytest.param([], ["fabric"], [], ["fabric"], id="one-layer"),
        pytest.param([], ["fabric", "os_stabilization"], [], ["os_stabilization", "fabric"], id="running-order"),
        pytest.param([], ["engine"], [], ["plan", "engine"], id="engine-needs-the-plan"),
        pytest.param([], ["verify"], [], ["plan", "verify"], id="verify-needs-the-plan"),
        pytest.param([], ["preflight"], [], [], id="preflight-alone"),
        pytest.param([], ["all"], ["engine", "verify"], [*ALL[:-5], "gateway", "web_ui", "observability"], id="skip"),
        pytest.param([], ["tagged"], ["fabric"], [name for name in ALL if name != "fabric"], id="tagged"),
        pytest.param(["fabric"], ["all"], [], ["fabric"], id="layer-playbook"),
        pytest.param([], ["ray", "engine"], ["engine"], ["plan", "ray"], id="skip-one-that-is-named"),
        pytest.param([], ["ray"], ["ray"], [], id="skip-the-only-one"),
        pytest.param([], ["ray"], ["plan"], ["ray"], id="skip-the-plan"),
        pytest.param(["plan", "ray"], ["ray"], [], ["plan", "ray"], id="layer-playbook-with-tag"),
        pytest.param(["fabric"], ["engine"], [], [], id="tag-of-another-playbook"),
    ],
)
def test_select(playbook_layers, run_tags, skip_tags, expected):
    assert preflight_layers.select(playbook_layers, run_tags, skip_tags) == (expected, [])


def test_a_part_of_a_playbook_selects_the_layers_that_it_needs():
    parts = {"fabric": ["verify"], "serving": ["plan", "verify"]}
    for tags, wanted in ((["fabric"], ["verify"]), (["serving"], ["plan", "verify"]), (["all"], ["plan", "verify"])):
        assert preflight_layers.select(["plan", "verify"], tags, [], parts) == (wanted, []), tags
    assert preflight_layers.tagged(["fabric", "serving"], ["serving"], parts) == ["fabric", "verify"]
    _selected, (finding,) = preflight_layers.select(["plan", "verify"], ["servin"], [], parts)
    assert finding.remedy.startswith("Did you mean 'serving'?")
    assert finding.remedy.endswith("verify; parts of this playbook: fabric, serving")
    assert preflight_layers.select(["plan", "verify"], ["serving"], [])[1], "another playbook has no such part"


def test_a_mistyped_tag_is_refused_with_a_suggestion():
    _selected, findings = preflight_layers.select([], ["fabrik", "always"], [])
    assert [str(f) for f in findings] == [
        "--tags: there is no layer 'fabrik'. Did you mean 'fabric'? The layers are: "
        "preflight, access, os_stabilization, fabric, plan, artifacts, ray, engine, gateway, web_ui, observability, "
        "verify."
    ]


def test_a_mistyped_skip_tag_and_an_unknown_layer_are_both_reported():
    _selected, findings = preflight_layers.select(["fabric", "proxy"], ["all"], ["enginee"])
    assert [(f.host, f.found) for f in findings] == [
        ("--skip-tags", "there is no layer 'enginee'"),
        ("spark_layers", "there is no layer 'proxy'"),
    ]
    assert findings[0].remedy.startswith("Did you mean 'engine'? ")
    assert findings[1].remedy.startswith("The layers are: ")


def test_tags_that_tools_skip_on_their_own_are_no_mistake():
    assert preflight_layers.select([], ["all"], ["molecule-notest", "notest"]) == (ALL, [])


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([], "inventory: there is no host in the group 'sparks'"),
        (["localhost,", "/"], "inventory localhost,, /: there is no host in the group 'sparks'"),
        (["/etc/ansible/hosts"], "inventory: none was named"),
        (["/", "/no/such"], "inventory /no/such: there is no such file or folder"),
    ],
)
def test_an_inventory_without_sparks_is_refused(sources, says):
    (finding,) = preflight_layers.missing_sparks([], sources)
    assert str(finding).startswith(f"{says}. Name yours with -i")


def test_an_inventory_with_sparks_passes():
    assert preflight_layers.missing_sparks(["spark1"], ["x"]) == []


def test_a_configuration_that_was_not_read(tmp_path):
    (tmp_path / "ansible.cfg").touch()
    (tmp_path / "playbooks").mkdir()
    playbooks, elsewhere = str(tmp_path / "playbooks"), str(tmp_path.parent)
    assert not preflight_layers.unread_configuration("/home/me/.ansible.cfg", playbooks, elsewhere)
    assert not preflight_layers.unread_configuration("", elsewhere, elsewhere)  # a collection that was installed
    (finding,) = preflight_layers.unread_configuration("", playbooks, elsewhere)
    assert f"started in {elsewhere}" in finding.found
    assert finding.remedy == f"Start it in {tmp_path}, or: export ANSIBLE_CONFIG={tmp_path}/ansible.cfg"
    (finding,) = preflight_layers.unread_configuration("", str(tmp_path), str(tmp_path))
    assert "every user may write into this directory" in finding.found
    assert finding.remedy == f"export ANSIBLE_CONFIG={tmp_path}/ansible.cfg"
