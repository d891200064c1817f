# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Surveys of AWX from the argument specifications of the roles. Pure; ``make docs`` writes what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.variables import Variable

TYPES = {"str": "text", "path": "text", "int": "integer", "float": "float", "bool": "multiplechoice"}


def survey(questions: Sequence[Mapping[str, Any]], variables: Mapping[str, Variable]) -> dict[str, Any]:
    """As AWX stores it. A question that says its type is a whole one."""
    return {
        "name": "",
        "description": "",
        "spec": [
            {
                **_question(question["variable"], None if "type" in question else variables[question["variable"]]),
                **question,
            }
            for question in questions
        ],
    }


def _question(name: str, variable: Variable | None) -> dict[str, Any]:
    words = {"question_name": name.replace("_", " ").capitalize(), "variable": name}
    if variable is None:
        return words
    words["question_description"] = variable.description
    if variable.type == "bool" or variable.choices:
        choices = ["false", "true"] if variable.type == "bool" else [str(choice) for choice in variable.choices]
        default = str(variable.default).lower() if variable.type == "bool" else str(variable.default)
        # Lines, since AWX's pages split them.
        return {**words, "type": "multiplechoice", "required": True, "choices": "\n".join(choices), "default": default}
    default = "" if variable.default is None else variable.default
    # An empty answer is passed on as one, and no number and no name of a recipe.
    return {**words, "type": TYPES[variable.type], "required": default != "", "default": default}
