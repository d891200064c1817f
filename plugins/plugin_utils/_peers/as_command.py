# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A recipe of another tool as one of the engine kind ``command``: what ran there, with places for ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import placement
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import Mount, PeerRecipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.placement import Program

_MODEL = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?|/[^\x00-\x1f\x7f@]*", re.ASCII)
HEALTH = "/health"
_RANKED = re.compile("@(?:rank|nodes|head)@")
MODELS = UserSettings().hf_home
_MODEL_OPTIONS = ("--model", "--model-path", "-m", "-hf", "--hf-repo", "--models-dir")
_PICTURES = re.compile(r"\bflux\b|stable-diffusion|\bsdxl|-image\b|hunyuan-?(?:image|video)|\bwan-?2", re.IGNORECASE)
_MODEL_VARIABLES = ("MODEL", "MODEL_ID", "MODEL_NAME", "MODEL_PATH", "HF_MODEL")


class _Text(str):
    """Printed over several lines."""


class _Words(list[str]):
    """Printed one after the other."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Dumper.add_representer(_Text, _represented)
_Dumper.add_representer(
    _Words, lambda dumper, words: dumper.represent_sequence("tag:yaml.org,2002:seq", words, flow_style=True)
)


def printed(document: dict[str, Any]) -> str:
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True))


def made(peer: PeerRecipe) -> dict[str, Any]:
    """The document of the recipe. What it cannot keep is added to the peer's losses."""
    engine, rest = placement.start(peer)
    document: dict[str, Any] = {}
    if peer.description:
        document["description"] = peer.description
    document["model"] = _model(peer, engine, rest)
    if engine is None and _PICTURES.search(document["model"]):
        found = f"it serves images ({document['model']}): a start here is over when an answer in text has come"
        raise SparkError(found, peer.where, "Start it with their own tool, on a machine that serves nothing else")
    revision = peer.revision or placement.value_of(rest, ("--revision",))
    if revision and "$" not in revision:
        document["revision"] = revision
    document["served_model_name"] = (peer.served or placement.values_of(rest, _served(engine)) or (document["model"],))[
        0
    ]
    document["engine"] = "command"
    if engine is None:
        peer.lose(
            f"what {' '.join(peer.argv[:2]) or peer.image} answers to",
            "a program that is not known here; a run asks it for a token as OpenAI's API has it",
            "see whether it has /v1/chat/completions, or /v1/embeddings (task: embed)",
        )
    task = _task(rest, document["model"])
    document |= {"task": task} if task else {}
    several = peer.min_nodes > 1
    if several:
        document["min_nodes"] = peer.min_nodes
    document["max_nodes"] = max(peer.min_nodes, 1)
    if "$" in peer.image or not peer.image:
        peer.lose(f"image {peer.image}".strip(), "the file does not say which", "name one in the recipe: image")
    else:
        document["image"] = peer.image
    if build := {
        **({"dockerfile": peer.dockerfile} if peer.dockerfile else {}),
        **({"arguments": peer.build_arguments} if peer.build_arguments else {}),
        **({"mods": peer.mods} if peer.mods else {}),
    }:
        document["build"] = build
    _cached(peer)
    environment = placement.environment(peer.environment, peer, several=several)
    document |= _commands(peer, engine, document["model"])
    if several and not _RANKED.search(printed({**document["command"], **environment})):
        peer.lose(
            f"how its {peer.min_nodes} ranks meet",
            "the file does not say it in a way that is known here",
            "write the places @rank@, @nodes@, @head@ and @rendezvous_port@ where its command takes them",
        )
    if environment:
        document["environment"] = dict(sorted(environment.items()))
    if peer.mounts:
        document["mounts"] = [
            {"source": one.source, "target": one.target, "read_only": one.read_only, "why": one.why}
            for one in peer.mounts
        ]
    if peer.health is not None and peer.health != HEALTH:
        document["health"] = peer.health
    port = _port(peer, engine)
    document |= {"port": port} if port else {}
    said = printed(document) if peer.missing else ""
    if missing := [name for name in peer.missing if re.search(rf"\$\{{?{re.escape(name)}(?!\w)", said)]:
        for name in missing:
            peer.lose(f"${name}", "the file gives it no value", "write the value where it stands in the recipe")
        document["hazards"] = [f"no value yet for {', '.join(missing)}: write it where the name stands"]
    document["sources"] = [f"{peer.format}: {Path(peer.where).name}"]
    return document


def _cached(peer: PeerRecipe) -> None:
    """Our directory of models where theirs was, if something names a file in it."""
    said = "\n".join([*peer.argv, peer.script, *peer.environment.values()])
    for target in dict.fromkeys(peer.caches):
        if f"{target}/" in said and all(mount.target != target for mount in peer.mounts):
            kept_there = any(value.startswith(f"{target}/") for value in peer.environment.values())
            why = "the models, where its command looks for them"
            peer.mounts.append(Mount(MODELS, target, read_only=not kept_there, why=why))


def _served(engine: Program | None) -> tuple[str, ...]:
    return engine.served if engine else ("--served-model-name",)


def _model(peer: PeerRecipe, engine: Program | None, rest: list[str]) -> str:
    """What the command serves: ``model`` of a file is only what its tool downloads."""
    served = positional(rest) if not engine or engine.name != "llama.cpp" else ""
    known = placement.program(peer.argv)[0]  # else a word may also be a program
    served = served if known or "/" in served else _behind_serve(peer.argv)
    served = placement.value_of(rest, engine.model if engine else _MODEL_OPTIONS) or served
    served = served or next((peer.environment[name] for name in _MODEL_VARIABLES if peer.environment.get(name)), "")
    served = served.partition(":")[0] if not served.startswith("/") else _on_the_node(peer, served)
    named = peer.model.partition(":")[0] if not peer.model.startswith("/") else peer.model
    found = next((name for name in (named, served) if _MODEL.fullmatch(name)), "")
    if _MODEL.fullmatch(served) and not served.startswith("/") and served != named:
        found = served
        if named:
            why = f"their recipe names two, and the command serves {served}"
            peer.lose(f"model {named}", why, "fetch it as well if the command needs it")
    if not found and re.search(r"(?<![\w-])ray\s+start\b", " ".join([peer.script, *peer.argv])):
        raise SparkError(
            "it starts Ray and no engine", peer.where, "Give the head's file, which has the engine's command"
        )
    if not found:
        said = named or served
        raise SparkError(
            f"which model it serves is not in it{f' ({said})' if said else ''}",
            peer.where,
            "Write the model's name on Hugging Face, or its path on the nodes, into the command"
            + (", or give the variable a value: NAME=value above it, or in .env beside a Compose file" * ("$" in said)),
        )
    return found


def _behind_serve(rest: list[str]) -> str:
    """Of a program that nobody here knows."""
    return rest[rest.index("serve") + 1] if "serve" in rest[:-1] else ""


def _on_the_node(peer: PeerRecipe, path: str) -> str:
    """A path in the container as the node has it."""
    for mount in sorted(peer.mounts, key=lambda one: len(one.target), reverse=True):
        target = mount.target.rstrip("/")
        if path == target or path.startswith(f"{target}/"):
            return mount.source.rstrip("/") + path[len(target) :]
        if target.startswith(f"{path.rstrip('/')}/"):
            return mount.source
    inside = next((target for target in peer.caches if path.startswith(f"{target}/")), "")
    instead = "put it on every node at that path, and add it to mounts"
    if inside:
        instead = f"it is below their directory of models, {inside}: name the model as Hugging Face does"
    peer.lose(f"model {path}", "a path in their container, and not of a node", instead)
    return path


def positional(rest: list[str]) -> str:
    return rest[0] if rest and not rest[0].startswith("-") else ""


def _task(rest: list[str], model: str) -> str:
    kinds = {placement.value_of(rest, (name,)) for name in ("--runner", "--task", "--convert")} - {""}
    name = model.lower()
    if "rerank" in name or kinds & {"classify", "score", "rerank"}:
        return "rank"
    return "embed" if "embed" in name or kinds & {"pooling", "embed", "embedding"} or "--is-embedding" in rest else ""


def _commands(peer: PeerRecipe, engine: Program | None, model: str) -> dict[str, Any]:
    several = peer.min_nodes > 1
    ranked = any(given.name in ("--node-rank", "--rank") for given in placement.options(peer.argv))
    appended = peer.appended if several else []
    if peer.script:
        text = placement.text(peer.script, peer, engine).rstrip()
        first: dict[str, Any] = _shell(peer, text, appended)
    else:
        words = placement.words(peer.argv, peer, engine)
        words = [placement.MODEL if word == model and not model.startswith("/") else word for word in words]
        first = {"words": _Words([*words, *appended])}
    made: dict[str, Any] = {"command": first}
    worker = peer.worker or (list(engine.worker) if engine and ranked else [])
    if several and peer.script and worker:
        made["worker"] = _shell(peer, text, [*appended, *worker])
    elif several and not peer.script:
        others = [*_of_worker(first["words"], engine.of_head if engine else {}), *worker]
        made |= {"worker": {"words": _Words(others)}} if others != first["words"] else {}
    if peer.entrypoint:
        made["entrypoint"] = True
    return made


def _of_worker(words: list[str], of_head: Mapping[str, str]) -> list[str]:
    """Without what only the head takes, or with another value for it."""
    made = list(words)
    for given in reversed(list(placement.options(words))):
        if given.name in of_head and not given.inline and given.value is not None:
            other = of_head[given.name]
            made[given.at : given.at + 2] = [given.name, other] if other else []
    return made


def _shell(peer: PeerRecipe, text: str, appended: list[str]) -> dict[str, Any]:
    """The text of a shell; a login shell reads profiles, which may take programs of an image off its PATH."""
    whole = _Text(_lines(" ".join([text, *appended])))
    return {"script": whole} if peer.login else {"words": ["bash", "-c", whole]}


def _lines(text: str) -> str:
    """As YAML prints them: no blank at the end of a line, no tabs."""
    return "\n".join(line.rstrip() for line in text.expandtabs().splitlines()) + "\n"


def _port(peer: PeerRecipe, engine: Program | None) -> int:
    """Where it listens itself, if its command says no port."""
    if placement.value_of(peer.argv, ("--port",)) or re.search(r"(?<!\S)--port[= ]", peer.script):
        return 0
    if peer.port:
        return peer.port
    found = engine.port if engine else 0
    if not found:
        peer.lose("its port", "the file does not say where it listens", "write port into the recipe")
    return found
