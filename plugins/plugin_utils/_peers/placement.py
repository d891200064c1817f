# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What of a command and its variables says where a rank is and whom it meets: places, which a plan fills in.

All else of a recipe stays as it was written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import checks, option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import Loss, PeerRecipe

RANK, NODES, HEAD, ADDRESS = "@rank@", "@nodes@", "@head@", "@address@"
INTERFACE, PORT, RENDEZVOUS, MODEL = "@interface@", "@port@", "@rendezvous_port@", "@model@"
_API = {"--port": PORT, "--host": "@host@"}
_MEET = f"{HEAD}:{RENDEZVOUS}"


@dataclass(frozen=True)
class Program:
    """How an engine is started by others. ``sizes``: options of tp, pp and dp; ``served``: name for clients;
    ``port``: where it listens unless it is told one, by its documentation; ``everywhere``: on all addresses then."""

    name: str
    signs: tuple[str, ...]  # the last word of the program, and what has to stand behind it
    serve: bool = False
    port: int = 0
    everywhere: bool = False
    ranks: tuple[str, ...] = ()  # what a tool adds for several nodes
    worker: tuple[str, ...] = ()
    sizes: tuple[tuple[str, ...], ...] = ()
    served: tuple[str, ...] = ("--served-model-name",)
    model: tuple[str, ...] = ("--model-path", "--model")
    places: dict[str, str] = field(default_factory=dict)
    once: bool = False  # sizes that are equal are of the same machines
    of_head: dict[str, str] = field(default_factory=dict)  # what a worker has instead; empty: not at all


_TORCH = {"--nnodes": NODES, "--node-rank": RANK, "--master-addr": HEAD, "--master-port": RENDEZVOUS}
_DATA = {"--data-parallel-address": HEAD, "-dpa": HEAD}
_ANY = {**_API, **_TORCH, **_DATA, "--dist-init-addr": _MEET}  # of a program that nobody here knows
_VLLM_SIZES = (
    ("-tp", "--tensor-parallel-size"),
    ("-pp", "--pipeline-parallel-size"),
    ("-dp", "--data-parallel-size"),
)
PROGRAMS = (
    Program(
        "vllm",
        ("vllm", "vllm.entrypoints.openai.api_server"),
        serve=True,
        port=8000,
        everywhere=True,
        ranks=tuple(word for pair in _TORCH.items() for word in pair),
        worker=("--headless",),
        sizes=_VLLM_SIZES,
        places={**_API, **_TORCH, **_DATA},
    ),
    Program(
        "sglang",
        ("sglang", "sglang.launch_server"),
        serve=True,
        port=30000,
        ranks=("--dist-init-addr", _MEET, "--nnodes", NODES, "--node-rank", RANK),
        sizes=(("--tp-size", "--tp", "--tensor-parallel-size"), ("--pp-size", "--pp"), ()),
        places={**_API, "--nnodes": NODES, "--node-rank": RANK, "--dist-init-addr": _MEET},
    ),
    Program(
        "tensorrt-llm",
        ("trtllm-serve",),
        port=8000,
        sizes=(("--tp_size",), ("--pp_size",), ()),
        model=(),
        places=_API,
    ),
    Program(
        "llama.cpp",
        ("llama-server",),
        port=8080,
        served=("--alias", "-a"),
        model=("-hf", "--hf-repo", "-m", "--model", "--models-dir"),
        places=_API,
    ),
    Program(
        "tensorfold",
        ("tensorfold",),
        serve=True,
        port=8080,
        ranks=("--rank", RANK, "--master", HEAD, "--master-port", RENDEZVOUS),
        sizes=(("--tp",), (), ()),
        served=("--name",),
        of_head={"--host": "", "--port": ""},
        places={**_API, "--rank": RANK, "--master": HEAD, "--master-port": RENDEZVOUS},
    ),
    Program(
        "atlas",
        ("spark",),
        serve=True,
        ranks=("--rank", RANK, "--world-size", NODES, "--master-addr", HEAD, "--master-port", RENDEZVOUS),
        sizes=(("--tp-size",), (), ("--ep-size",)),
        served=("--model-name",),
        once=True,
        of_head={"--port": "0"},
        places={
            **{**_API, "--rank": RANK, "--world-size": NODES},
            **{"--master-addr": HEAD, "--master-port": RENDEZVOUS},
        },
    ),
)
# What launchers call these; used where their file gives no value.
VARIABLES = {
    **dict.fromkeys(("NODE_RANK", "RANK"), RANK),
    **dict.fromkeys(("NNODES", "NUM_NODES", "WORLD_NODES"), NODES),
    **dict.fromkeys(("MASTER_ADDR", "HEAD_IP", "HEAD_ADDR", "HEAD_FABRIC_IP", "MASTER_IP", "HEAD_IP_ADDRESS"), HEAD),
    **dict.fromkeys(("HOST_IP", "NODE_IP", "LOCAL_IP", "VLLM_HOST_IP", "NODE_IP_ADDRESS", "SGLANG_HOST_IP"), ADDRESS),
    **dict.fromkeys(("MASTER_PORT", "RDZV_PORT"), RENDEZVOUS),
    **dict.fromkeys(("IFNAME", "ETH_IF", "FABRIC_IFACE"), INTERFACE),
    **dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), INTERFACE),
}
# Variables of the environment that become places; these of the plan and the fabric are left out.
_PLACED = {
    **{name: VARIABLES[name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SGLANG_HOST_IP")},
    **dict.fromkeys(("NNODES", "NUM_NODES"), NODES),
    **dict.fromkeys(("RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS", "HOST_IP", "NODE_IP"), ADDRESS),
    **dict.fromkeys(("HEAD_IP", "MASTER_IP"), HEAD),
}
_MODELS = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"})
_OF_THE_PLAN = frozenset({"VLLM_HOST_IP", "HEADLESS", *checks.PER_NODE, *checks.OF_THE_FABRIC})
# By these, a program with a name of its own hands its words to the first of the engines.
_WRAPPED = {"--tensor-parallel-size", "--node-rank", "--master-addr"}
_IFNAME = re.compile(
    r"(?:NCCL|GLOO|TP|UCX|MN|ETH|OMPI)_\w*(?:IFNAME|IF_NAME|NET_DEVICES|if_include)|NCCL_IB_HCA|NCCL_IB_ADDR_RANGE"
)
_DEVICE = re.compile(r"\b(?:roce|enp|enP)\w*\d\w*")
_ADDRESS = re.compile(r"<address>|\b(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01])|169\.254)(?:\.\d{1,3}){2,3}\b")
BACKEND = ("--distributed-executor-backend", "--distributed_executor_backend")
_OF_RANKS = "which rank a machine is and whom it meets is the plan's"


@dataclass(frozen=True)
class Given:
    at: int
    name: str
    value: str | None
    inline: bool


def program(argv: Sequence[str]) -> tuple[Program | None, int]:
    """The engine that a command starts, and where the words behind its program begin."""
    for number, word in enumerate(argv):
        name = word.rpartition("/")[2]
        for one in PROGRAMS:
            if name in one.signs:
                if not one.serve or "." in name:
                    return one, number + 1 + (argv[number + 1 : number + 2] == ["serve"])
                if argv[number + 1 : number + 2] == ["serve"]:
                    return one, number + 2
    return None, len(argv)


def start(peer: PeerRecipe) -> tuple[Program | None, list[str]]:
    """The engine, and the words behind its program; also where that is the image's entrypoint."""
    engine, begins = program(peer.argv)
    if engine is None:
        engine = by_look(peer.image, peer.argv) if peer.entrypoint else None
        begins = int(engine is not None and peer.argv[:1] == ["serve"])
    if engine is None and "serve" in peer.argv and {one.name for one in options(peer.argv)} >= _WRAPPED:
        engine, begins = PROGRAMS[0], peer.argv.index("serve") + 1
    return engine, peer.argv[begins:]


def ranks(peer: PeerRecipe, engine: Program | None, argv: Sequence[str], by_tool: Program | None = None) -> None:
    """What a tool adds for several nodes, where the command names none itself; and the name for clients."""
    adds = engine or by_tool
    if adds and peer.min_nodes > 1 and not ranked(argv):
        peer.appended, peer.worker = list(adds.ranks), list(adds.worker)
    if engine:
        peer.served = values_of(argv, engine.served)


def ranked(argv: Sequence[str]) -> bool:
    return any(given.name in ("--nnodes", "--node-rank", "--rank") for given in options(argv))


def of_runtime(name: str) -> Program | None:
    """The engine that sparkrun takes a recipe for, whatever its command starts."""
    return next((one for one in PROGRAMS if one.name == name.partition("-")[0]), None)


def by_look(image: str, argv: Sequence[str]) -> Program | None:
    """What an image's own entrypoint starts: by the name of the image, else by whose options these are."""
    name = image.partition("@")[0].lower()
    if re.search(r"vllm|dspark", name):
        return PROGRAMS[0]
    by_name = next((one for one in PROGRAMS if _letters(one.name) in _letters(name)), None)
    starts = bool(argv) and not argv[0].startswith("-") and "/" not in argv[0]  # another program
    given = [] if starts else [one.name for one in options(argv) if one.name.startswith("--")]
    for one in PROGRAMS[:2] if given and not by_name else ():
        table = option_tables.newest(one.name, "")
        if all(table.long_name(name) for name in given):
            return one
    return by_name


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9/]", "", name)


def options(argv: Sequence[str]) -> Iterator[Given]:
    for number, word in enumerate(argv):
        if not word.startswith("-") or word in ("-", "--"):
            continue
        name, inline, value = word.partition("=")
        following = argv[number + 1 : number + 2]
        if inline:
            yield Given(number, name, value, inline=True)
        else:
            # A negative number is a value, and so is a text that is quoted.
            has = following and not re.match(r"--?[A-Za-z]", following[0])
            yield Given(number, name, following[0] if has else None, inline=False)


def value_of(argv: Sequence[str], names: Sequence[str]) -> str:
    """The last one counts, as for the engines' parsers."""
    found = [given.value for given in options(argv) if given.name in names and given.value is not None]
    return found[-1] if found else ""


def values_of(argv: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """All words behind an option."""
    made: tuple[str, ...] = ()
    for given in options(argv):
        if given.name in names:
            rest = argv[given.at + 1 :] if not given.inline else ()
            end = next((number for number, word in enumerate(rest) if word.startswith("--")), len(rest))
            made = (given.value or "",) if given.inline else tuple(rest[:end])
    return made


def nodes(argv: Sequence[str], engine: Program | None) -> int:
    """tp x pp x dp, one GPU in each machine; 0: nothing is said."""
    sizes = [value_of(argv, names) for names in (engine.sizes if engine else ())]
    said = [int(size) for size in sizes if size.isascii() and size.isdigit() and 0 < int(size) <= 4096]
    if engine and engine.once and len(set(said)) == 1:
        said = said[:1]
    return math.prod(said) if said else 0


def words(argv: Sequence[str], peer: PeerRecipe, engine: Program | None) -> list[str]:
    """The command with its places."""
    table, made = (engine.places if engine else _ANY), list(argv)
    for given in options(argv):
        if given.name not in table or given.value is None:
            continue
        place = table[given.name]
        if place in given.value:
            continue
        if given.name == "--port" and given.value == "0":
            continue
        made[given.at + (not given.inline)] = f"{given.name}={place}" if given.inline else place
        _placed(peer, f"{given.name} {given.value}", given.name)
    ray = [given for given in options(made) if given.name in BACKEND and given.value == "ray"]
    for given in reversed(ray):
        del made[given.at : given.at + (1 if given.inline else 2)]
        _no_ray(peer, given.name)
    if "--headless" in made:
        made.remove("--headless")
        peer.worker = ["--headless"]
    if engine and engine.everywhere and not value_of(made, ("--host",)):
        made += ["--host", _API["--host"]]
        peer.placed.append(Loss("--host", "theirs listens on all addresses, as none is given"))
    return [of_machine(word, peer) for word in made]


def text(script: str, peer: PeerRecipe, engine: Program | None) -> str:
    """The same in the text of a shell."""
    table = engine.places if engine else _ANY

    def put(match: re.Match[str]) -> str:
        name, between, value = match.groups()
        if name in BACKEND:
            _no_ray(peer, name)
            return ""
        if table[name] in value or (name == "--port" and value == "0"):
            return match.group()
        _placed(peer, f"{name} {value}", name)
        return f"{name}{between}{table[name]}"

    known = "|".join(map(re.escape, sorted(table, key=len, reverse=True)))
    value = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)\"']+)"
    script = re.sub(rf"(?<!\S)({known})(=|[ \t]+){value}", put, script)
    script = re.sub(rf"(?<!\S)({'|'.join(BACKEND)})(=|[ \t]+)(ray)(?!\S)", put, script)
    if re.search(r"(?<![\w-])ray\s+start\b", script):
        peer.lose(
            "ray start", "their text starts Ray, and no rank here meets another through it", "take it out of the script"
        )
    without = re.sub(r"(?<!\S)--headless(?!\S)", "", script)
    if without != script:
        peer.worker = ["--headless"]
    for name, place in VARIABLES.items():
        if not re.search(rf"^[ \t]*(?:export[ \t]+)?{name}=", without, re.MULTILINE):
            without = re.sub(rf"\$\{{{name}(?::?-[^{{}}]*)?\}}|\${name}\b", place, without)
    return of_machine(without, peer)


def environment(given: dict[str, str], peer: PeerRecipe, *, several: bool) -> dict[str, str]:
    """What differs from machine to machine becomes a place, or is left to the fabric."""
    made = {}
    for name, value in given.items():
        said = f"{name}={value}"
        if name in _OF_THE_PLAN or _IFNAME.fullmatch(name):
            peer.placed.append(Loss(said, "how machines reach each other is the fabric's"))
        elif name in _MODELS:
            peer.placed.append(Loss(said, "where the models are is the collection's"))
        elif name in _PLACED and (several or not value or name != "MASTER_PORT"):
            made[name] = _PLACED[name]
            _placed(peer, said, name)
        else:
            made[name] = of_machine(value, peer)
            if _DEVICE.search(value) and not name.startswith("NCCL_"):
                peer.placed.append(Loss(said, "names devices of their machines, and stays; compare it with yours"))
    return made


def of_machine(value: str, peer: PeerRecipe) -> str:
    """An address of their network is nobody's here."""
    for found in sorted(set(_ADDRESS.findall(value)), key=len, reverse=True):
        peer.placed.append(Loss(found, f"an address of their network; {HEAD} stands there"))
        value = value.replace(found, HEAD)
    return value


def _placed(peer: PeerRecipe, said: str, name: str) -> None:
    peer.placed.append(Loss(said, "where the API listens is the plan's" if name in _API else _OF_RANKS))


def _no_ray(peer: PeerRecipe, name: str) -> None:
    peer.placed.append(Loss(f"{name} ray", "ranks find each other without Ray, in the engine's own way"))
