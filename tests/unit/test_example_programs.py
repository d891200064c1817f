# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""docs/examples: what a model may say to the tool. That all of them run: tests/scenarios/test_examples.py."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import types

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs/examples"


@pytest.fixture(name="tools")
def _tools(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", types.SimpleNamespace(OpenAI=object))
    spec = importlib.util.spec_from_file_location("example_tools", EXAMPLES / "tools.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Message(types.SimpleNamespace):
    def model_dump(self, **_options):
        return {"role": "assistant", "content": self.content}


def client(*rounds):
    """Each round: text, or the calls of a message."""
    asked = []

    def create(messages, **_options):
        asked.append(list(messages))
        said = rounds[min(len(asked), len(rounds)) - 1]
        calls = [
            types.SimpleNamespace(id=str(number), function=types.SimpleNamespace(name=name, arguments=arguments))
            for number, (name, arguments) in enumerate([] if isinstance(said, str) else said)
        ]
        message = Message(content=said if isinstance(said, str) else None, tool_calls=calls)
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])

    found = types.SimpleNamespace(chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=create)))
    return found, asked


def test_a_result_goes_back_to_the_model(tools):
    call = ("calculate", json.dumps({"operation": "multiply", "a": 6, "b": 7}))
    found, asked = client([call], "It is 42.")
    assert tools.ask(found, "model", "6 * 7?") == "It is 42."
    assert asked[1][-1] == {"role": "tool", "tool_call_id": "0", "content": "42.0"}


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "__import__('os').system('true')",
        '"text"',
        "[]",
        '{"operation": "__class__", "a": 1, "b": 1}',
        '{"operation": ["add"], "a": 1, "b": 1}',
        '{"operation": "add", "a": "1; rm", "b": 1}',
        '{"operation": "divide", "a": 1, "b": 0}',
        '{"operation": "multiply", "a": 1e308, "b": 1e308}',
        '{"operation": "add", "a": NaN, "b": 1}',
        '{"operation": "add", "a": ' + "9" * 5000 + ', "b": 1}',
        "[" * 100000,
    ],
)
def test_a_call_that_is_wrong_is_answered_with_an_error(tools, arguments):
    assert tools.calculate(arguments).startswith("error: ")


def test_another_tool_is_not_there_and_a_loop_ends(tools):
    found, asked = client([("open_file", "{}")])
    assert tools.ask(found, "model", "?") == "no answer after 8 rounds"
    assert len(asked) == 8
    assert asked[1][-1]["content"] == "error: there is no such tool"
