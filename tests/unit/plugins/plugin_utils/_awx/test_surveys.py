# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._awx import surveys
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.variables import Variable
from awx_api import check_survey

VARIABLES = {
    variable.name: variable
    for variable in (
        Variable("engine_recipe", "engine", default="gpt-oss-120b", description="Name."),
        Variable("engine_profile", "engine", default=""),
        Variable("engine_context", "engine", "int", default=0),
        Variable("fabric_rollback_seconds", "fabric", "float", default=150.0),
        Variable("os_update_firmware", "os_update", "bool", default=False),
        Variable("os_update_reboot", "os_update", choices=("rolling", "never"), default="rolling"),
    )
}


def question(**asked):
    made = surveys.survey([asked], VARIABLES)
    check_survey(made)
    return made["spec"][0]


@pytest.mark.parametrize(
    ("name", "kind", "required", "default"),
    [
        ("engine_recipe", "text", True, "gpt-oss-120b"),
        ("engine_profile", "text", False, ""),
        ("engine_context", "integer", True, 0),
        ("fabric_rollback_seconds", "float", True, 150.0),
        ("os_update_firmware", "multiplechoice", True, "false"),
        ("os_update_reboot", "multiplechoice", True, "rolling"),
    ],
)
def test_a_question_is_as_the_variable(name, kind, required, default):
    made = question(variable=name)
    assert (made["type"], made["required"], made["default"]) == (kind, required, default)


def test_a_question_may_differ_or_be_a_whole_one():
    assert question(variable="engine_recipe", default="")["required"] is True
    own = {"type": "text", "required": False, "default": "", "question_description": "One."}
    assert question(variable="node_fingerprint", **own)["question_name"] == "Node fingerprint"
