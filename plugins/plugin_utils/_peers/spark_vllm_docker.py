# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Recipes of spark-vllm-docker: a command with placeholders, a local image, and mods that are run in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import placement, shell
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import (
    Loss,
    PeerRecipe,
    put,
    shown,
    texts,
)

FORMAT = "spark-vllm-docker"
SHAPE: dict[str, type] = {"defaults": dict, "env": dict, "min_nodes": int, "max_nodes": int, "model": str}
READ = frozenset(
    {
        *("recipe_version", "name", "description", "model", "container", "command", "mods", "defaults", "env"),
        *("build_args", "cluster_only", "solo_only", "pull_image"),
    }
)
# Set by its launcher in every container; the recipe's own come later and win.
LAUNCHER = "NCCL_IGNORE_CPU_AFFINITY=1, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_DOUBLED = re.compile(r"\{\{|\}\}|\{[A-Za-z_]\w*\}")
_IN_CONTAINER = re.compile(r"[$`\\]")
_ONES = {"{{": "\1", "}}": "\2"}
_TAKEN = frozenset({"served_model_name", "distributed_executor_backend"})
PASSES = 10


def matches(document: Mapping[str, Any]) -> bool:
    version = str(document.get("recipe_version") or "1")
    return isinstance(document.get("command"), (str, list)) and version == "1" and set(document) <= READ


def read(document: Mapping[str, Any], path: str) -> PeerRecipe:
    peer = PeerRecipe(FORMAT, path, caches=["/root/.cache/huggingface"])
    begin(peer, document, path)
    peer.put_environment(document.get("env") or {})
    command(peer, document, {"model": peer.model, **(document.get("defaults") or {})}, path)
    finish(peer, document)
    launcher(peer, LAUNCHER)
    return peer


def launcher(peer: PeerRecipe, variables: str) -> None:
    """Of the tool, not of the recipe."""
    peer.placed.append(
        Loss(variables, "their launcher sets these beside the recipe; put them into environment if you miss them")
    )


def begin(peer: PeerRecipe, document: Mapping[str, Any], path: str) -> None:
    """What both tools have."""
    plain = {key: value for key, value in document.items() if key not in ("env", "defaults") or value}
    yaml_text.check(plain, SHAPE, path)
    metadata = document.get("metadata")
    said = metadata.get("description") if isinstance(metadata, Mapping) else ""
    peer.name = str(document.get("name") or "")
    peer.description = " ".join(str(document.get("description") or said or peer.name or "").split())
    peer.model = str(document.get("model") or "")
    peer.revision = str(document.get("model_revision") or "")
    peer.image = str(document.get("container") or "")
    if peer.image and "/" not in peer.image and "@" not in peer.image:
        peer.lose(
            f"container ({peer.image})",
            "a name that says nothing of what is in it: its launcher builds it on their machine",
            "build it with theirs and copy it to the nodes, or name an image of a registry: engine_image",
        )
    words = " ".join(texts(document.get("build_args")))
    if words:
        peer.lose(
            f"build_args ({words})",
            "words of their program that builds the image; what they change is not in this recipe",
            "build the image with them",
        )
    for mod in texts(document.get("mods")):
        put_mod(peer, mod, path)
    if document.get("cluster_only"):
        peer.min_nodes = 2
    if document.get("solo_only"):
        peer.max_nodes = 1


def put_mod(peer: PeerRecipe, mod: str, path: str) -> None:
    """Its directory beside the recipe, or beside the folder that the recipe is in."""
    base = Path(path).expanduser().resolve().parent
    wanted = re.sub(r"^@[^/]+/", "", mod)
    places = (
        []
        if "\0" in wanted
        else [(up, up / kind / wanted) for up in (base, *list(base.parents)[:3]) for kind in (".", "mods", "recipes")]
    )
    found = next(
        (one for up, one in places if (one / "run.sh").is_file() and one.resolve().is_relative_to(up.resolve())), None
    )
    if found:
        peer.mods.append(str(found.resolve()))
    else:
        peer.mods.append(wanted)
        peer.lose(
            f"mods ({mod})",
            "their patch is not beside the file, and without it the engine is another one",
            f"copy {wanted} with its run.sh to this computer and write its whole path into build.mods",
        )


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Placeholders, and doubled braces: where ``{{`` is in a text, two mean one, in every version of theirs."""
    doubled = "{{" in text
    if doubled:  # from the left: in `{{"n":{n}}}` the first brace that closes is the placeholder's
        text = _DOUBLED.sub(lambda match: _ONES.get(match.group(), match.group()), text)
    text = put_in(text, values)
    return text.replace(_ONES["{{"], "{").replace(_ONES["}}"], "}") if doubled else text


def put_in(text: str, values: Mapping[str, Any]) -> str:
    """Placeholders alone; what stands for one may name another."""
    for _number in range(PASSES):
        made = put(_PLACEHOLDER, lambda match: _text(values, match), text)
        if made == text:
            break
        text = made
    return text


def _text(values: Mapping[str, Any], match: re.Match[str]) -> str:
    value = values.get(match[1])
    # As Python prints it, which both tools are written in.
    return match.group() if match[1] not in values else "" if value is None else str(value)


def command(peer: PeerRecipe, document: Mapping[str, Any], values: Mapping[str, Any], path: str) -> None:
    """The command, as words where it is no more than words."""
    given = document["command"]
    template = shlex.join(map(str, given)) if isinstance(given, list) else str(given)
    if document.get("solo_only") and "tensor_parallel" in values:
        values = {**values, "tensor_parallel": 1}
        peer.placed.append(Loss("tensor_parallel", "their tool sets it to 1 on one machine"))
    # A backslash, blanks and the end of the line continue it, for both tools.
    text = re.sub(r"\\[ \t]+\n", "\\\n", filled(template, values)).strip()
    text = text.rstrip("\\ \t\r\n")
    if peer.format == FORMAT:  # its launcher drops them
        text = re.sub(r"\n(?:[ \t]*(?:\\[ \t]*)?\n)+", "\n", text)
    if "{{" in template and str(document.get("recipe_version") or "2") != "1":
        named = re.findall(r"(--?[A-Za-z][\w.-]*)[= ]+['\"]?\{\{", template)
        why = "two are one, as sparkrun reads them since 0.4; an older one passes both on, and its engine refuses them"
        peer.placed.append(Loss(f"doubled braces ({', '.join(named) or 'in its command'})", why))
    pattern = _DOUBLED if "{{" in template else _PLACEHOLDER
    asked = dict.fromkeys(match.group() for match in pattern.finditer(template) if match.group() not in _ONES)
    if unfilled := [place for place in asked if place[1:-1] not in values]:
        peer.lose(f"{', '.join(unfilled)} in its command", "no value is said for it", "write the value in its place")
    used = {match[1] for one in (template, *values.values()) for match in _PLACEHOLDER.finditer(str(one))}
    for key, value in (document.get("defaults") or {}).items():
        if str(key) not in used and key not in _TAKEN:
            peer.placed.append(Loss(f"defaults.{key} ({shown(str(key), value)})", "their command has no place for it"))
    put_command(peer, text, path)


def put_command(peer: PeerRecipe, text: str, path: str) -> None:
    exports, plain = [], {}
    for name, value in peer.environment.items():
        if _IN_CONTAINER.search(value) and peer.format == FORMAT:
            exports.append(f'export {name}="{value}"')
        else:
            plain[name] = value
    made = shell.read(text, {}, path)
    started = [one for one in made.statements if placement.program(one.words)[0]]
    first = started[0] if started else made.statements[-1] if made.statements else None
    if first is None:
        raise SparkError("it has no command to start", path, "Name a recipe with a command")
    peer.argv = first.words
    whole = len(made.statements) == 1 and first.plain and not first.missing and not first.defaulted and not made.more
    if whole and not exports:
        peer.environment.update(first.assigned)
    else:
        peer.environment = plain
        peer.script = "\n".join([*exports, text])


def finish(peer: PeerRecipe, document: Mapping[str, Any]) -> None:
    """Nodes, ranks and names, once the command is known."""
    engine, rest = placement.start(peer)
    product = placement.nodes(rest, engine)
    asked = int(document.get("min_nodes") or 0)
    peer.min_nodes = max(peer.min_nodes, product, asked, 1)
    peer.max_nodes = peer.max_nodes or int(document.get("max_nodes") or 0)
    if peer.max_nodes and peer.max_nodes < peer.min_nodes:
        peer.placed.append(Loss(f"at most {peer.max_nodes} node(s)", f"its sizes take {peer.min_nodes}, which count"))
    by_tool = placement.of_runtime(str(document.get("runtime") or ""))
    placement.ranks(peer, engine, rest if engine else peer.argv, by_tool)
