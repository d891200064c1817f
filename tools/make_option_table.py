#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Make the option table of one version of an engine from its Python files, without importing them.

    make_option_table.py vllm|sglang|tensorrt-llm|ray VERSION TREE [--write] [--differs-from NEWER]

TREE holds the package: the site-packages of an environment where the engine is installed, or an unpacked wheel
(``pip download --no-deps vllm==X && unzip -q vllm-*.whl '*.py' -d TREE``). The table goes to standard output, or with
``--write`` to plugins/plugin_utils/_engine/versions/. How each engine declares its options:

- vLLM: ``add_argument("--x", **kwargs["field"])`` with ``kwargs = get_kwargs(SomeConfig)``; types are annotations.
- SGLang: annotated fields, ``x: A[int, Arg(...)]``, and a few ``add_argument`` calls.
- TensorRT-LLM and Ray: click decorators on the function ``serve`` or ``start``.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

TABLES = pathlib.Path(__file__).resolve().parents[1] / "plugins/plugin_utils/_engine/versions"
Kind = Any  # "flag", "int", "size", "float", "str", "json", "list", or a list of choices
WIDTH = 116
INVERSES = {"--enable-": "--disable-", "--disable-": "--enable-"}
SIZES = {
    "max_model_len",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "max_total_tokens",
    "safetensors_prefetch_block_size",
}
# What else the parsers take: added by a helper (Ray), or what depends on the platform that was asked (vLLM).
RAY_LOGGING = {
    "--log-style": ["auto", "pretty", "record"],
    "--log-color": ["auto", "false", "true"],
    "--verbose": "flag",
}
VLLM_PARTS = (
    "config",
    "engine",
    "entrypoints",
    "model_executor/layers/quantization",
    "model_executor/model_loader",
    "plugins",
    "reasoning",
    "renderers",
    "tool_parsers",
    "utils",
    "v1/attention/backends",
)
# How many parts of a version decide, where not two: every release of SGLang (0.5.x) changes options.
PARTS = {"sglang": {"parts": 3}}
ALSO = {"--mm-processor-device": ["cuda"]}


class Sources:
    """All classes, type aliases and module-level literals of some files, by name."""

    def __init__(self, files: Iterator[pathlib.Path]) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.values: dict[str, ast.expr] = {}
        self.trees: dict[pathlib.Path, ast.Module] = {}
        for file in sorted(files):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            self.trees[file] = tree
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.values.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                    self.values.setdefault(node.target.id, node.value)

    def fields(self, name: str) -> dict[str, ast.AnnAssign]:
        """Annotated fields of a class and its bases, the bases first."""
        found: dict[str, ast.AnnAssign] = {}
        node = self.classes.get(name)
        if node is None:
            return found
        for base in node.bases:
            if isinstance(base, ast.Name):
                found.update(self.fields(base.id))
        found.update(
            {
                item.target.id: item
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not _class_variable(item)
            }
        )
        return found

    def members(self, annotation: ast.expr) -> Iterator[ast.expr]:
        """The parts of a union, with names of aliases followed."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            yield from self.members(ast.parse(annotation.value, mode="eval").body)
        elif isinstance(annotation, ast.BinOp):
            yield from self.members(annotation.left)
            yield from self.members(annotation.right)
        elif isinstance(annotation, ast.Subscript) and _name(annotation.value) in {
            "Optional",
            "Union",
            "SkipValidation",
        }:
            parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            for part in parts:
                yield from self.members(part)
        elif isinstance(annotation, ast.Subscript) and _name(annotation.value) in {"Annotated", "A"}:
            assert isinstance(annotation.slice, ast.Tuple)
            yield from self.members(annotation.slice.elts[0])
        elif isinstance(annotation, ast.Name) and annotation.id in self.values and annotation.id not in self.classes:
            yield from self.members(self.values[annotation.id])
        else:
            yield annotation

    def literals(self, node: ast.expr | None) -> list[str]:
        """The texts of a ``Literal``, a list, a dictionary's keys, or a name that stands for one of them."""
        if node is None:
            return []
        if isinstance(node, ast.Constant) and node.value is not None:
            return [str(node.value)]
        if isinstance(node, ast.Name):
            return self.literals(self.values.get(node.id))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [text for item in node.elts for text in self.literals(item)]
        if isinstance(node, ast.Starred):
            return self.literals(node.value)
        if isinstance(node, ast.Dict):
            return [text for key in node.keys for text in self.literals(key)]
        if isinstance(node, ast.Subscript):
            return self.literals(node.slice)
        if isinstance(node, ast.Call) and node.args:
            return self.literals(node.args[0])
        if isinstance(node, ast.BinOp):
            return [*self.literals(node.left), *self.literals(node.right)]
        return []

    def kind(self, name: str, annotation: ast.expr) -> Kind:
        """In the order in which vLLM's own ``get_kwargs`` decides; a sequence comes before what it is made of."""
        parts = list(self.members(annotation))
        heads = [_name(part.value if isinstance(part, ast.Subscript) else part) for part in parts]
        if any(head in self.classes and _is_record(self.classes[head]) for head in heads):
            return "json"
        if "bool" in heads:
            return "str" if "str" in heads else "flag"  # --hf-token: with or without a value
        choices = [text for part, head in zip(parts, heads) if head == "Literal" for text in self.literals(part)]
        if choices:
            free = [head for head in heads if head in {"str", "int"}]
            optional = (
                [str(None)] if any(isinstance(part, ast.Constant) and part.value is None for part in parts) else []
            )
            return "str" if free else [*choices, *optional]
        if {"list", "tuple", "set", "List"} & set(heads):
            return "list"
        if "int" in heads:
            return "size" if name in SIZES else "int"
        if "float" in heads:
            return "float"
        if "dict" in heads or "Dict" in heads:
            return "json"
        return "str"


def _class_variable(item: ast.AnnAssign) -> bool:
    return isinstance(item.annotation, ast.Subscript) and _name(item.annotation.value) == "ClassVar"


def _is_record(node: ast.ClassDef) -> bool:
    bases = {_name(base) for base in node.bases}
    return bool(node.decorator_list) and not bases & {"Enum", "IntEnum", "StrEnum"}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in names:
            yield node


def _spellings(call: ast.Call) -> list[str]:
    texts = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [text for text in texts if text.startswith("-")]


class Table:
    """Options by their first long name, and the other spellings of each."""

    def __init__(self) -> None:
        self.options: dict[str, Kind] = {}
        self.aliases: dict[str, str] = {}
        self.opposites: dict[str, str] = {}
        self.lonely: set[str] = set()  # flags without an opposite: store_true

    def add(self, names: list[str], kind: Kind, lonely: bool = False) -> None:
        first = next((name for name in names if name.startswith("--")), names[0])
        if first in self.aliases:
            return
        self.options[first] = sorted({*kind, *ALSO.get(first, [])}) if isinstance(kind, list) else kind
        if lonely:
            self.lonely.add(first)
        self.aliases.update({name: first for name in names if name != first})

    def oppose(self, inverse_names: bool) -> None:
        """``--no-x`` for each flag; newer versions also pair ``--enable-x`` with ``--disable-x``."""
        for name in [option for option, kind in self.options.items() if kind == "flag"]:
            if name in self.lonely or name in self.opposites.values():
                continue
            self.opposites[name] = f"--no-{name[2:]}"
            for prefix, other in INVERSES.items() if inverse_names else ():
                if name.startswith(prefix):
                    self.opposites[name] = other + name[len(prefix) :]


def _declared_kind(sources: Sources, call: ast.Call) -> Kind:
    words = {word.arg: word.value for word in call.keywords if word.arg}
    action = ast.unparse(words["action"]) if "action" in words else ""
    if any(mark in action for mark in ("store_true", "BooleanOptional", "StoreTrue", "StoreConst", "store_false")):
        return "flag"
    choices = sources.literals(words.get("choices"))
    if choices:
        return choices
    if "nargs" in words:
        return "list"
    kind = _name(words["type"]) if "type" in words else "str"
    return kind if kind in {"int", "float", "str"} else "size" if "human" in kind else "str"


def vllm(tree: pathlib.Path) -> dict[str, Any]:
    package = tree / "vllm"
    sources = Sources(file for part in VLLM_PARTS for file in (package / part).rglob("*.py"))
    table = Table()
    files = [
        file
        for file in sources.trees
        if file.name == "arg_utils.py" or (file.name == "cli_args.py" and "benchmark" not in file.parts)
    ]
    for file in sorted(files, key=lambda file: file.name != "cli_args.py"):
        _vllm_file(sources, sources.trees[file], table)
    argparse_utils = (package / "utils/argparse_utils.py").read_text(encoding="utf-8")
    table.oppose("EnableDisableAction" in argparse_utils)
    backends = sources.classes.get("AttentionBackendEnum")
    values = {
        "--quantization": sources.literals(sources.values.get("QuantizationMethods")),
        "--load-format": sources.literals(sources.values.get("LoadFormats")),
        "--kv-cache-dtype": sources.literals(sources.values.get("CacheDType")),
        "--tool-call-parser": sources.literals(sources.values.get("_TOOL_PARSERS_TO_REGISTER")),
        "--reasoning-parser": sources.literals(sources.values.get("_REASONING_PARSERS_TO_REGISTER")),
        "--attention-backend": [
            _name(item.targets[0]) for item in (backends.body if backends else []) if isinstance(item, ast.Assign)
        ],
        "--distributed-executor-backend": sources.literals(sources.values.get("DistributedExecutorBackend")),
    }
    environment = Sources(iter([package / "envs.py"])).values["environment_variables"]
    return _finish(table, values, Sources.literals(sources, environment))


def _vllm_file(sources: Sources, tree: ast.Module, table: Table) -> None:
    holders: dict[str, str] = {}
    fields_of = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _name(node.value.func) == "get_kwargs"
            and isinstance(node.targets[0], ast.Name)
        ):
            holders[node.targets[0].id] = _name(node.value.args[0])
    if "frontend_kwargs" in holders:  # every field is an option: for key, value in frontend_kwargs.items()
        fields = sources.fields("FrontendArgs")
        for name, item in fields.items():
            kind = sources.kind(name, item.annotation)
            # Three lists of the frontend are JSON, and middleware is given once per entry.
            special = {"allowed_origins": "json", "allowed_methods": "json", "allowed_headers": "json",
                       "middleware": "str", "disable_access_log_for_endpoints": "str"}  # fmt: skip
            table.add([f"--{name.replace('_', '-')}"], special.get(name, kind))
    for call in _calls(tree, "add_argument"):
        names = _spellings(call)
        if not names or names[0] == "--help":
            continue
        spread = next(
            (found for word in call.keywords if word.arg is None for found in _field_of(word.value, fields_of)), None
        )
        if spread:
            owner, field = holders.get(spread[0], ""), spread[1]
            declared = sources.fields(owner).get(field)
            table.add(names, sources.kind(field, declared.annotation) if declared else "str")
        else:
            actions = [ast.unparse(word.value) for word in call.keywords if word.arg == "action"]
            table.add(names, _declared_kind(sources, call), lonely="'store_true'" in actions)


def _field_of(node: ast.AST, known: Mapping[str, ast.AST]) -> Iterator[tuple[str, str]]:
    """(variable, key) of ``variable["key"]``, also inside ``{**variable["key"], ...}`` or behind another name."""
    for found in ast.walk(node):
        part = known.get(found.id, found) if isinstance(found, ast.Name) else found
        if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
            yield _name(part.value), str(part.slice.value)


def sglang(tree: pathlib.Path) -> dict[str, Any]:
    root = tree / "sglang/srt"
    files = [root / "server_args.py", *(root / "arg_groups").rglob("*.py"), *(root / "utils").glob("*.py")]
    sources = Sources(iter(files))
    table = Table()
    for file, module in sources.trees.items():
        if "fields" not in file.parts and file.name != "server_args.py":
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                _sglang_field(sources, node.target.id, node.annotation, table)
    for call in _calls(sources.trees[root / "server_args.py"], "add_argument"):
        names = _spellings(call)
        choices = [word.value for word in call.keywords if word.arg == "choices"]
        if names:  # choices that are computed are not known here
            computed = any(not isinstance(item, (ast.List, ast.Tuple)) for item in choices)
            table.add(names, "str" if computed else _declared_kind(sources, call))
    values = {}
    for option, path, name in (
        ("--reasoning-parser", "parser/reasoning_parser.py", "DetectorMap"),
        ("--tool-call-parser", "function_call/function_call_parser.py", "ToolCallParserEnum"),
    ):
        found = [
            node.value
            for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8")))
            if isinstance(node, ast.AnnAssign) and _name(node.target) == name and node.value
        ]
        values[option] = ["auto", *(text for node in found for text in sources.literals(node))]
    return _finish(table, values, [])


def _sglang_field(sources: Sources, name: str, annotation: ast.expr, table: Table) -> None:
    if not (isinstance(annotation, ast.Subscript) and _name(annotation.value) in {"A", "Annotated"}):
        return
    assert isinstance(annotation.slice, ast.Tuple)
    inner, meta = annotation.slice.elts[0], annotation.slice.elts[1]
    words = {word.arg: word.value for word in meta.keywords if word.arg} if isinstance(meta, ast.Call) else {}
    if "no_cli" in words or (isinstance(meta, ast.Call) and _name(meta.func) != "Arg"):
        return
    names = [*(sources.literals(words.get("cli_name")) or [f"--{name.replace('_', '-')}"])]
    names += sources.literals(words.get("aliases"))
    if "action" in words:
        kind: Kind = (
            "flag" if "Bool" in ast.unparse(words["action"]) or "store" in ast.unparse(words["action"]) else "list"
        )
        if "BooleanOptional" in ast.unparse(words["action"]):
            table.opposites[names[0]] = f"--no-{names[0][2:]}"
    elif sources.literals(words.get("choices")):
        kind = sources.literals(words["choices"])
    elif "nargs" in words:
        kind = "list"
    elif "type_parser" in words:
        kind = "json" if "json" in ast.unparse(words["type_parser"]) else "str"
    else:
        kind = sources.kind(name, inner)
    table.add(names, kind)


def click_options(file: pathlib.Path, function: str, values: Mapping[str, Any]) -> dict[str, Any]:
    sources = Sources(iter([file]))
    table = Table()
    commands = [
        node
        for node in ast.walk(sources.trees[file])
        if isinstance(node, ast.FunctionDef) and node.name == function and node.decorator_list
    ]
    for call in (item for command in commands for item in command.decorator_list if isinstance(item, ast.Call)):
        names = [part for text in _spellings(call) for part in text.split("/")] if _name(call.func) == "option" else []
        if not names:
            continue
        words = {word.arg: word.value for word in call.keywords if word.arg}
        declared = words.get("type")
        kind: Kind = "str"
        if "is_flag" in words or any("/" in text for text in _spellings(call)):
            kind = "flag"
        elif isinstance(declared, ast.Call) and "Choice" in _name(declared.func):
            kind = sources.literals(declared.args[0]) or "str"
        elif declared is not None and _name(declared) in {"int", "float", "bool"}:
            kind = {"bool": ["true", "false", "True", "False"]}.get(_name(declared), _name(declared))
        table.add(names, kind)
    if function == "start":
        for name, kind in RAY_LOGGING.items():
            table.add([name, "-v"] if name == "--verbose" else [name], kind)
    return _finish(table, dict(values), [])


def _finish(table: Table, values: Mapping[str, list[str]], environment: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"options": dict(sorted(table.options.items()))}
    for name, mapping in (("aliases", table.aliases), ("opposites", table.opposites)):
        made[name] = dict(sorted(mapping.items()))
    made["values"] = {name: sorted(set(known)) for name, known in sorted(values.items()) if known}
    made["environment"] = sorted(set(environment))
    return made


def make(engine: str, version: str, tree: pathlib.Path) -> dict[str, Any]:
    makers: dict[str, Callable[[pathlib.Path], dict[str, Any]]] = {
        "vllm": vllm,
        "sglang": sglang,
        "tensorrt-llm": lambda tree: click_options(tree / "tensorrt_llm/commands/serve.py", "serve", {}),
        "ray": lambda tree: click_options(tree / "ray/scripts/scripts.py", "start", {}),
    }
    return {"engine": engine, "version": version, **PARTS.get(engine, {}), **makers[engine](tree)}


def dump(table: Mapping[str, Any]) -> str:
    """JSON in which names with the same first letter share lines, so that a new version shows as a small difference."""
    lines = []
    for key, value in table.items():
        name, text = json.dumps(key), json.dumps(value)
        if isinstance(value, dict):
            text = _block("{}", [f"{json.dumps(item)}: {json.dumps(kind)}" for item, kind in value.items()])
        elif isinstance(value, list):
            text = _block("[]", [json.dumps(item) for item in value])
        lines.append(f" {name}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def difference(table: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any]:
    """What :mod:`_engine.option_tables` makes ``table`` of, where it has ``newest``."""
    made: dict[str, Any] = {"engine": table["engine"], "version": table["version"], "differs_from": newest["version"]}
    for part, value in table.items():
        if part not in made:
            own, other = (
                one if isinstance(one, dict) else dict.fromkeys(one, True) if isinstance(one, list) else {"": one}
                for one in (value, newest[part])
            )
            changed = {name: own.get(name) for name in sorted({**own, **other}) if own.get(name) != other.get(name)}
            made |= {part: changed} if changed else {}
    return made


def _block(brackets: str, items: Sequence[str]) -> str:
    lines: list[str] = []
    for _letter, alike in itertools.groupby(items, lambda item: item.lstrip('"-').removeprefix("VLLM_")[:1]):
        lines.append("")
        for item in alike:
            lines += [""] if lines[-1] and len(lines[-1]) + len(item) > WIDTH else []
            lines[-1] += f" {item}," if lines[-1] else f"  {item},"
    inner = "\n".join(lines).rstrip(",")
    return f"{brackets[0]}\n{inner}\n {brackets[1]}" if inner else brackets


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang", "tensorrt-llm", "ray"])
    parser.add_argument("version")
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="into plugins/plugin_utils/_engine/versions")
    parser.add_argument("--differs-from", metavar="NEWER", help="write only what the table of this version has not")
    options = parser.parse_args(argv)
    table = make(options.engine, options.version, options.tree)
    if options.differs_from:
        newer = TABLES / f"{options.engine}-{options.differs_from}.json"
        table = difference(table, json.loads(newer.read_text(encoding="utf-8")))
    text = dump(table)
    if options.write:
        (TABLES / f"{options.engine}-{options.version}.json").write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
