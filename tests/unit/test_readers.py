# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every reader of what a tool, a file or another machine says (``readers.py``), with damaged input: an answer, or its
own refusal.

Made of true output, since what is nearly right is read wrong most easily. `make fuzz` looks for ten minutes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins import module_utils as node_side
from ansible_collections.sparkmatrix.cluster.plugins import plugin_utils as controller_side
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from hypothesis import given, note
from hypothesis import strategies as st
from readers import DOCUMENTS, TEXTS

# Their true input is refused as well, at its end: among the fixtures are outputs without a result, and files that an
# archive or an image would have to have are not made here.
REFUSED = (
    *("_fabric/show_gids:parse", "_nccl/results:ours", "_nccl/results:table", "_artifacts/hub:ask revision"),
    *(f"_artifacts/image_source:{name}" for name in ("from_archive", "from_docker", "_from_overlay2")),
)


@pytest.mark.parametrize("name", TEXTS)
def test_true_output_is_understood(name: str) -> None:
    reader = TEXTS[name]
    for text in reader.true:
        try:
            reader.read(text)
        except reader.refuses as exc:
            assert name in REFUSED, exc


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_true_document_is_understood(name: str) -> None:
    assert DOCUMENTS[name].read(DOCUMENTS[name].true[0])


# --- none is forgotten ------------------------------------------------------------------------------------------------

PLUGINS = Path(inspect.getfile(json_text)).resolve().parents[2]
ONE_WAY = {"json_text": ("read", "mapping", "mappings"), "yaml_text": ("read", "file")}
# What reads JSON or YAML in another way, and why.
OTHER_WAYS = {
    "module_utils/_base/json_text.py:read": "it is the one way",
    "plugin_utils/_base/yaml_text.py:read": "it is the one way",
    "module_utils/_fabric/netplan.py:_first_document": "the dialect of netplan; its reader is in the table",
    "module_utils/_artifacts/hub_client.py:run": "in the Python of an engine, what this node has written; it tells all",
    "module_utils/_nccl/collectives.py:main": "in the Python of an engine, from its own arguments",
    "module_utils/_gateway/relay_body.py:_text": "one text of a request",
    "plugin_utils/_metrics/files.py:_yaml": "what it has written in the same line",
}
# Readers that are in no table, and why.
OURS = "a file of this collection"
NOT_REACHED = {
    "module_utils/_artifacts/image_server.py:run": "a file of root that a run has just written",
    "module_utils/_engine/nosuid.py:_noted": "what root has written",
    "module_utils/_engine/taken.py:_noted": "the same; its tests have damaged ones",
    "module_utils/_artifacts/from_controller.py:run": "what this collection has sent; its tests say what is refused",
    "module_utils/_artifacts/from_controller.py:take": "the same",
    "action/artifacts_send.py:_node": "its tests have a node that answers otherwise",
    "plugin_utils/_engine/option_tables.py:document": OURS,
    "module_utils/_gateway/apply.py:_relay_config": "what this run has rendered",
    "module_utils/_gateway/apply.py:_mark_of": "the same",
    "module_utils/_keeper/prefixes.py:_marked": "compared as a whole; its tests have damaged ones",
    "module_utils/_gateway/relay_named.py:listed": "what the keeper has written; its tests read it",
    "module_utils/_gateway/relay_config.py:read_config": "a file of root; its tests have damaged ones",
    "module_utils/_web_ui/data.py:unpack": "its tests have archives",
    "plugin_utils/_preflight/variables.py:load": OURS,
    "plugin_utils/_verdict/planners.py:_developed": OURS,
    "plugin_utils/_verdict/planners.py:_installed": OURS,
}
# What they read is no text, or they are parts of a reader that is in the table.
NOT_HERE = [
    "_artifacts/work:parse",
    "_engine/engine_json:parse",
    "_managed/service:parse_environ",
    "_os/options:parse",
    "_qos/dcb:parse_json",
]


class Place(NamedTuple):
    """A call that reads JSON or YAML."""

    file: str
    function: str
    lines: range
    one_way: bool

    @property
    def name(self) -> str:
        return f"{self.file}:{self.function}"


def calls(path: Path) -> Iterator[Place]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        words = ast.unparse(call.func).split(".")
        one_way = len(words) == 2 and words[1] in ONE_WAY.get(words[0], ())
        if one_way or words[-1] == "yaml_load" or (words[0] in {"json", "yaml"} and "load" in words[-1]):
            around = [
                function_def
                for function_def in functions
                if function_def.lineno <= call.lineno <= (function_def.end_lineno or 0)
            ]
            lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
            yield Place(str(path.relative_to(PLUGINS)), around[-1].name if around else "", lines, one_way)


@functools.cache
def places() -> list[Place]:
    return [place for path in sorted(PLUGINS.rglob("*.py")) for place in calls(path)]


def caller(frame: FrameType | None) -> tuple[str, int]:
    """Who has asked for it to be read."""
    own = {inspect.getfile(json_text), inspect.getfile(yaml_text)}
    while frame is not None and frame.f_code.co_filename in own | {__file__}:
        frame = frame.f_back
    return (str(Path(frame.f_code.co_filename).resolve()), frame.f_lineno) if frame else ("", 0)


def reached() -> set[tuple[str, int]]:
    """Where JSON or YAML is read when all readers of the table have read what is true."""
    found = set()

    def spy(load: Callable[..., Any]) -> Callable[..., Any]:
        def loading(*args: Any, **more: Any) -> Any:
            found.add(caller(sys._getframe(1)))
            return load(*args, **more)

        return loading

    seen = SimpleNamespace(loads=spy(json.loads), dumps=json.dumps)
    with mock.patch.object(json_text, "json", seen), mock.patch.object(yaml_text, "yaml_load", spy(yaml.safe_load)):
        for reader in TEXTS.values():
            for text in reader.true:
                try:
                    reader.read(text)
                except reader.refuses:
                    continue
    return found


def test_json_and_yaml_are_read_in_one_way() -> None:
    assert {place.name for place in places() if not place.one_way} == set(OTHER_WAYS)


def test_every_reader_of_json_and_yaml_is_in_the_table() -> None:
    lines = reached()
    missed = {
        place.name
        for place in places()
        if place.one_way and not any((str(PLUGINS / place.file), line) in lines for line in place.lines)
    }
    assert missed - set(OTHER_WAYS) == set(NOT_REACHED)


def test_every_parser_is_in_the_table() -> None:
    names = set()
    for side in (node_side, controller_side):
        base = side.__name__
        for module in pkgutil.walk_packages([str(Path(path)) for path in side.__path__], f"{base}."):
            if module.ispkg:
                continue
            for name, function in inspect.getmembers(import_module(module.name), inspect.isfunction):
                if re.match(r"parse(_|$)", name) and function.__module__ == module.name:
                    names.add(f"{module.name[len(base) + 1 :].replace('.', '/')}:{name}")
    assert names - set(NOT_HERE) - set(TEXTS) - set(DOCUMENTS) == set()


# --- damaged ----------------------------------------------------------------------------------------------------------

NUMBERS = ("-1", "9" * 30, "9" * 5000, "1e999", "NaN", "\u00b2", "\u0663")  # the last two: a digit, and a decimal
PIECES = (*'\n\t \0=:x"{]\xa0\u21d2\ud800', *NUMBERS, "\x1b[1m", "null", "[" * 3000)


@functools.cache
def structured(text: str) -> Any:
    """What JSON or YAML says; None for other text."""
    for load in (json.loads, yaml.safe_load):
        try:
            value = load(text)
        except (ValueError, yaml.YAMLError):
            continue
        return value if isinstance(value, (dict, list)) else None
    return None


@st.composite
def damaged(draw: st.DrawFn, true: tuple[str, ...]) -> str:
    """A true text that was cut, glued, doubled, shuffled or overwritten at a few places; or JSON with another value."""
    text = draw(st.sampled_from(true))
    value = structured(text)
    if value is not None and draw(st.booleans()):
        return json.dumps(draw(distorted(value)))
    for _time in range(draw(st.integers(1, 4))):
        at, to = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        to = min(to, at + draw(st.sampled_from([1, 3, 20, 10_000])))
        text = (
            text[:at]
            + draw(
                st.one_of(
                    st.just(""),
                    st.sampled_from(PIECES),
                    st.just(text[at:to] * 2),
                    st.just(text[at:to][::-1]),
                    st.just("\n".join(reversed(text[at:to].split("\n")))),
                    st.text(max_size=8),
                )
            )
            + text[to:]
        )
    return text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def distorted(draw: st.DrawFn, value: Any) -> Any:
    """A document with another value, or none, or one more, at some place of it."""
    if isinstance(value, Mapping) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: draw(distorted(value[key]))}
    if isinstance(value, (list, tuple)) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(distorted(value[place])), *value[place + 1 :]]
    if isinstance(value, Mapping) and value:
        gone = draw(st.sampled_from(sorted(value)))
        return draw(
            st.sampled_from([{key: one for key, one in value.items() if key != gone}, {**value, "more": 1}]) | JSON
        )
    return draw(JSON)


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damaged_text_gives_an_answer_or_a_refusal(name: str, data: st.DataObject) -> None:
    reader = TEXTS[name]
    try:
        reader.read(data.draw(damaged(reader.true)))
    except reader.refuses as exc:
        note(str(exc))
        assert str(exc)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_a_distorted_document_gives_an_answer_or_a_refusal(name: str, data: st.DataObject) -> None:
    reader = DOCUMENTS[name]
    document = data.draw(distorted(reader.true[0]))
    try:
        reader.read(document)
    except reader.refuses as exc:
        assert str(exc)


# What a cut text tells must be a part of what the whole one tells: no device, entry or rule that was never there.
ENTRIES: dict[str, Callable[[Any], set[Any]]] = {
    "_fabric/ibdev2netdev:parse": lambda ports: {(port.rdma_device, port.port) for port in ports},
    "_fabric/show_gids:parse": lambda gids: {(gid.device, gid.port, gid.index, gid.gid, gid.version) for gid in gids},
    "_firewall/ufw:parse_active": lambda active: {active},
    "_qos/dcb:parse_pfc": lambda found: {found},
    "_qos/dcb:parse_dcbx": lambda owner: {owner},
    "_base/network:parse_addresses": lambda found: {one.name for one in found or ()},
    "_base/network:parse_routes": lambda found: {one.dst for one in found or ()},
    "_engine/ray_cluster:parse": lambda found: {str(node) for node in found[0] or ()},
    "_nccl/results:table": lambda run: {(run.test, row.bytes) for row in run.rows},
}


@pytest.mark.parametrize("name", ENTRIES)
@given(data=st.data())
def test_a_cut_text_tells_nothing_that_the_whole_does_not(name: str, data: st.DataObject) -> None:
    reader, entries = TEXTS[name], ENTRIES[name]
    text = data.draw(st.sampled_from(reader.true))
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        whole = entries(reader.read(text))
        part = entries(reader.read(cut))
    except reader.refuses:
        return
    assert part <= whole or not cut.strip()


def test_what_a_value_is_held_to_is_held_to_all_of_it():
    """``^...$`` with match or search lets a newline at the end through, and that is a line of its own in a file."""
    found = []
    for path in (Path(node_side.__path__[0]).parent).rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("re.compile", "re.match", "re.search"):
                text = "".join(str(part.value) for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant))
                whole = text.startswith("^") and re.search(r"(?<!\\)\$$", text)
                if whole and not re.search(r"re\.M", ast.unparse(call)):
                    found.append(f"{path.name}:{call.lineno}: {text}")
    assert found == []
