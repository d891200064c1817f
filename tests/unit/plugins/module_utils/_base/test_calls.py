# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a run asks of a node: every call has a typed request and answer, and the module carries its file."""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages
from ansible_collections.sparkmatrix.cluster.plugins.modules import node
from module_runner import run_module

ROOT = pathlib.Path(__file__).resolve().parents[5]
KEEPS = ("diff",)  # what Ansible shows, and nobody reads


@pytest.mark.parametrize("name", calls.CALLS)
def test_a_call_has_a_typed_request_and_answer(name: str) -> None:
    kinds = list(typing.get_type_hints(calls.function(name)).values())
    assert len(kinds) == 3 and kinds[1] is bool
    assert is_dataclass(kinds[0]) and is_dataclass(kinds[2])


@pytest.mark.parametrize("name", calls.CALLS)
def test_every_text_of_an_answer_has_a_kind(name: str) -> None:
    """Else it could be put into a file or a command."""
    bare = [where for where, kind in walk(calls.answer_type(name), "") if kind in (str, Any, object)]
    assert bare == [], "take a kind of _base/kinds.py: Words for what only people read"


def walk(cls: Any, where: str) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    for item in fields(cls):
        if item.name not in KEEPS or where:
            yield from _inner(hints[item.name], f"{where}.{item.name}".lstrip("."))


def _inner(kind: Any, where: str) -> Iterator[tuple[str, Any]]:
    if hasattr(kind, "__metadata__"):
        return
    if is_dataclass(kind):
        yield from walk(kind, where)
        return
    arguments = [one for one in typing.get_args(kind) if one not in (Ellipsis, type(None))]
    for argument in arguments:
        yield from _inner(argument, where)
    if not arguments:
        yield where, kind


def test_the_module_carries_every_call() -> None:
    function = ast.parse(inspect.getsource(node.carried)).body[0]
    carried = {
        f"{one.module.removeprefix(calls.PACKAGE + '.')}.{name.name}"
        for one in ast.walk(function)
        if isinstance(one, ast.ImportFrom) and one.module
        for name in one.names
    }
    assert carried == {place.partition(":")[0] for place in calls.CALLS.values()}


def _tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    for folder in ("roles", "playbooks", "molecule"):
        for path in sorted((ROOT / folder).rglob("*.yml")):
            todo = [yaml.safe_load(path.read_text().replace("!unsafe", ""))]
            while todo:
                found = todo.pop()
                todo += found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
                task = found.get("sparkmatrix.cluster.node") if isinstance(found, dict) else None
                if isinstance(task, dict) and isinstance(task.get("request", {}), dict):
                    yield str(path.relative_to(ROOT)), task


def test_tasks_ask_what_a_call_takes() -> None:
    """Names of what a template fills in, and everything where there is none."""
    wrong = []
    tasks = list(_tasks())
    assert len({task["call"] for _path, task in tasks}) > 30
    for path, task in tasks:
        kind = next(iter(typing.get_type_hints(calls.function(task["call"])).values()))
        request = {**task.get("request", {}), **task.get("secrets", {})}
        try:
            if "{{" not in json.dumps(request):
                document.load(kind, request, spoken=True)
            elif unknown := request.keys() - {item.name for item in fields(kind)}:
                wrong.append((path, task["call"], sorted(unknown)))
        except (TypeError, ValueError, SparkError) as exc:
            wrong.append((path, task["call"], str(exc)))
    assert wrong == []


def test_a_call_that_does_not_exist_or_fit_is_refused() -> None:
    for args in ({"call": "anything"}, {"call": "packages", "request": {"name": "x"}}, {"call": "packages"}):
        result, failed = run_module(node, args)
        assert failed
        assert any(words in result["msg"] for words in ("Give the whole", "Calls are"))


def test_an_answer_is_read_by_its_kinds() -> None:
    said: Mapping[str, Any] = {"changed": True, "packages": ["nginx"], "diff": [{"x": "\x1b"}], "invocation": {"a": 1}}
    assert calls.read("packages", json.loads(json.dumps(said)), "spark1").packages == ["nginx"]
    for lie in ({**said, "packages": ["a b"]}, {**said, "packages": "nginx"}, {"changed": True}, "text"):
        with pytest.raises(SparkError) as caught:
            calls.read("packages", lie, "spark1")
        assert caught.value.where == "spark1"


def test_a_request_may_be_spoken_on_a_command_line() -> None:
    """``-e`` makes texts of numbers and truth values."""
    read = document.load(packages.Wanted, {"names": [7], "start": "no", "recommends": "True"}, spoken=True)
    assert read == packages.Wanted(("7",), recommends=True, start=False)
    with pytest.raises(TypeError, match="start"):
        document.load(packages.Wanted, {"names": [], "start": "perhaps"}, spoken=True)
    with pytest.raises(TypeError, match="start"):
        document.load(packages.Wanted, {"names": [], "start": "no"})
