# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as v
from hypothesis import given
from hypothesis import strategies as st

Variable = v.Variable


def write(roles, role, text):
    path = roles / role / "meta/argument_specs.yml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_what_layers_hand_on_is_known():
    """A later preflight of the same run sees it, and refuses names that nobody documents."""
    tasks = [path.read_text() for path in sorted(v.ROLES.glob("*/tasks/*.yml"))]
    set_facts = {name for text in tasks for name in re.findall(r"^ +(spark_\w+): .*# noqa", text, re.M)}
    registered = {name for text in tasks for name in re.findall(r"^ *register: (spark_\w+)", text, re.M)}
    assert {"spark_plan", "spark_node_tool"} <= set_facts | registered
    assert set_facts | registered <= set(v.load())


def test_specifications_are_merged(tmp_path):
    write(
        tmp_path,
        "demo",
        """
argument_specs:
  main:
    options:
      demo_mtu: {type: int, default: 9000, choices: [1500, 9000], description: ['Bytes, V(9000), not B(less).', More.]}
      demo_token: {description: x}
      demo_plain: {no_log: true}
      demo_list: {type: list, elements: int, required: true}
  other:
    options:
      demo_mtu: {type: str}
  empty: {}
""",
    )
    found = v.load(tmp_path)
    assert found["demo_mtu"] == Variable(
        "demo_mtu", "demo", "int", "", (1500, 9000), 9000, False, False, "Bytes, 9000, not less. More."
    )
    assert found["demo_token"].secret
    assert found["demo_plain"].secret
    assert (found["demo_list"].elements, found["demo_list"].required) == ("int", True)
    assert found["spark_rank"].role == "spark"


@pytest.mark.parametrize("text", ["", "[]", "{", "argument_specs: 3", "argument_specs: {main: {options: {a: 1}}}"])
def test_damaged_specification(tmp_path, text):
    write(tmp_path, "demo", text)
    with pytest.raises(SparkError, match=r"argument_specs\.yml: the argument specification cannot be read"):
        v.load(tmp_path)


def test_the_shipped_roles_are_documented():
    found = v.load()
    assert found["preflight_require_gb10"].type == "bool"
    for name, variable in found.items():
        assert variable.description, f"{name} has no description"
        # A default that its own type refuses would refuse every run.
        assert not v.complaint(variable, variable.default)


def test_prefixes():
    assert v.prefixes(frozenset()) == ("preflight_", "spark_")
    assert v.prefixes(frozenset({"fabric"})) == ("preflight_", "spark_", "access_", "peers_", "fabric_")
    assert "engine_" in v.prefixes(frozenset({"plan"}))
    assert "artifacts_" in v.prefixes(frozenset({"plan"}))
    # A role without a layer here would have its misspelled variables found by nobody.
    others = {"preflight", "awx"}
    assert {path.name for path in v.ROLES.iterdir() if path.is_dir()} - others == set(v.ROLE_LAYERS)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("str", ["a", 1, True, 1.5], [["a"], {"a": 1}]),
        ("path", ["/a"], [["/a"]]),
        ("int", [1, "1", " -2 ", 3.0], ["x", 1.5, True, [1], float("inf"), float("nan")]),
        ("float", [1, 1.5, "1.5", "1e3"], ["x", True, None.__class__, [1]]),
        ("bool", [True, False, "yes", "OFF", 1, 0], ["maybe", 2, [], {}]),
        ("list", [["a"], "a,b", ()], [{"a": 1}]),
        ("dict", [{"a": 1}, "a=1", '{"a": 1}'], [["a"], "a", 3]),
        ("raw", [1, "a", [], {}], []),
    ],
)
def test_types(kind, good, bad):
    variable = Variable("x", "demo", kind)
    for value in good:
        assert v.complaint(variable, value) == ""
    for value in bad:
        assert "expected" in v.complaint(variable, value)
    assert v.complaint(variable, None) == ""


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (Variable("x_mtu", "x", "int"), "nine", "x_mtu is the text 'nine', expected a whole number"),
        (Variable("x_on", "x", "bool"), "maybe", "x_on is the text 'maybe', expected true or false"),
        (Variable("x", "x", "str"), ["a"], "x is a list ['a'], expected a text"),
        (Variable("x", "x", "list", "int"), [1, {}], "x contains a mapping {}, expected a whole number"),
        (Variable("x", "x", choices=("a", "b")), "c", "x is 'c', expected one of a, b"),
        (Variable("x", "x", "int", choices=(1, 2)), 2, ""),
        (Variable("x", "x", "list", "str", choices=("a", "b")), ["a", "c"], "x is 'c', expected one of a, b"),
        (Variable("x_token", "x", secret=True), ["hunter2"], "x_token is a list, expected a text"),
        (
            Variable("x_tokens", "x", "list", "str", secret=True),
            [["hunter2"]],
            "x_tokens contains a list, expected a text",
        ),
        (Variable("x", "x", "dict"), {1}, "x is a set {1}, expected a mapping"),
        (Variable("x_key", "x", choices=("a",), secret=True), "hunter2", "x_key has a value that is not one of a"),
    ],
)
def test_complaints(variable, value, message):
    assert v.complaint(variable, value) == message


@given(
    st.sampled_from(["str", "int", "float", "bool", "list", "dict", "path", "raw"]),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_any_value_gets_an_answer(kind, value):
    assert isinstance(v.complaint(Variable("x", "x", kind, kind), value), str)
