#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Twenty public recipes of different shape on four simulated Sparks: read, planned, served as they are, a rank killed.

Usage: test_peer_recipes.py [--nodes N] [--only STEP[,STEP]] [--beside ID] [--keep] [--peer ID[,ID]]

Their files are written back from facts (tests/unit/peer_sources.py). The engine behind each name of an image is a
stand-in (tests/lab/standin/anything.py), which says with what it was started. With fewer nodes than a recipe is for,
it has as many ranks as there are nodes. Prints one JSON line.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT / "tests/unit"), str(ROOT / "collections")]

import cluster
import peer_sources
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_command, placement
from cluster import LabError
from test_own_command import ALLOWED, BEHIND
from test_services import reset, status
from test_staying_up import BACK_S, HEAD, TOOL, Cluster, Launch

RECORDS = "/var/lib/sparkmatrix/kernels"
CACHE = "/opt/sparkmatrix/models/huggingface"
LAUNCH = Launch("", ("-e", ALLOWED.replace("]", ', "moving-image"]'), "-e", BEHIND), nodes=4)
# By the id of its facts, values that the file leaves to its user.
PEERS: Mapping[str, Mapping[str, str]] = {
    "eugr-glm-5.3-flash-nvidia-nvfp4": {},
    "littlecedar-deepseek-v4.1-flash-tensorfold-tp2-1m-sglang": {},
    "mattcurf-glm-5.3-flash-exl3": {},
    "ursuciprian-glm53-sglang-dflash2": {},
    "spark-arena-minimax-m2.7-nvfp4-ep2-atlas": {},
    "alexellis-rank-launcher": {"ADAPTIVE_K_HOST_PATH": "/srv/theirs/adaptive_k_scheduler.py"},
    "timothystewart6-docker-compose.head-vllm-ray-head": {},
    "anemll-docker-compose-vllm-dspark": {"SPECULATIVE_CONFIG": "{}", "HOME": "/home/somebody"},
    "bytebunkerlabs-inkling-small-nvfp4": {"IMAGE": "example.org/inkling:1.0"},
    "ashhart-glm-5.3-flash": {},
    "eugr-mimo-v2.6-flash-pp3": {},
    "eugr-glm-5.3-flash": {},
    "spark-arena-deepseek-v4.1-flash-b12x-dspark-sglang-tp4": {},
    "littlecedar-deepseek-v4.1-flash-exl3-tp4-vllm": {},
    "richard0571-v41-tuned-tp4": {},
    "fujitsupolycom-compose.rank0-model": {},
    "beastllama-start-glm53-dflash": {"HOME": "/home/somebody"},
    "ursuciprian-qwen3.8-flash-next-1x-dgx-spark": {},
    "littlecedar-qwen3-vl-reranker-8b-vllm-b12x": {},
    "emosaru-qwen3.5-122b-nvfp4-trtllm": {},
    "sumner-harris-launch-4": {"MODEL_DIR": "/srv/theirs/qwen38fn", "PATCH_DIR": "/srv/theirs/patches"},
}
# Where their images have the engine, beside its own names, and what their scripts call before it.
AT = ("/usr/local/bin/vllm", "/opt/sparkring/toolchain/toolchain.py")
LAUNCHER = "tensorfold-dsv41-launcher/launcher.py"  # of a mod
BEFORE = re.compile(r"/opt/glm53/\w+\.py")
# On a node: its paths, which are models where they have no suffix, and models in the cache.
PREPARE = """
import json, pathlib, sys
def model(place):
    place.mkdir(parents=True, exist_ok=True)
    (place / 'config.json').write_text('{"architectures": ["LlamaForCausalLM"]}')
    (place / 'tokenizer.json').write_text('{}')
    head = b'{"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
    (place / 'model.safetensors').write_bytes(len(head).to_bytes(8, 'little') + head + b'x')
given = json.loads(sys.argv[1])
for path in map(pathlib.Path, given['paths']):
    if path.suffix in ('.py', '.jinja'):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    else:
        model(path)
for name, revision in given['models']:
    place = pathlib.Path(given['cache']) / 'hub' / ('models--' + name.replace('/', '--'))
    model(place / 'snapshots' / revision)
    (place / 'refs').mkdir(exist_ok=True)
    (place / 'refs/main').write_text(revision)
"""


@dataclass
class Peer:
    number: int
    fact: dict[str, Any]
    taken: peer_sources.Taken
    document: dict[str, Any]
    path: pathlib.Path
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.fact["id"])

    @property
    def nodes(self) -> list[str]:
        return [f"spark{number + 1}" for number in range(int(self.document.get("min_nodes", 1)))]

    @property
    def record(self) -> str:
        return f"{RECORDS}/peer{self.number}.json"

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "name": f"peer{self.number}",
            "recipe": str(self.path),
            "nodes": self.nodes,
            "port": 8100 + self.number,
            "memory_share": 0.5,
            "environment": {"STANDIN_RECORD": self.record},
        }


def prepared(nodes: int) -> list[Peer]:
    """Their files, read, with what their user fills in: an image that can be had here, and values."""
    place = cluster.STATE / "peers"
    shutil.rmtree(place, ignore_errors=True)
    by_id = {fact["id"]: fact for fact in peer_sources.facts()}
    made = []
    for number, (name, given) in enumerate(PEERS.items()):
        directory = place / str(number)
        directory.mkdir(parents=True)
        fact = by_id[name]
        taken = peer_sources.Taken(fact, directory, given)
        if taken.refused and "image" not in taken.refused:
            raise LabError(f"{name}: {taken.refused}")
        asked = int(taken.document.get("min_nodes", 1))
        size = {"min_nodes": min(asked, nodes), "max_nodes": min(asked, nodes)}
        document = {**taken.document, **size, "image": _tagged(str(taken.document.get("image") or fact["image"]))}
        launcher = next(directory.glob(f"mods/{pathlib.Path(LAUNCHER).parent}"), None)
        if launcher:
            shutil.copy(ROOT / "tests/lab/standin/anything.py", launcher / pathlib.Path(LAUNCHER).name)
        path = directory / "ours.yml"
        path.write_text(as_command.printed(document))
        scaled = {"for_nodes": asked} if asked > nodes else {}
        made.append(Peer(number, fact, taken, document, path, scaled))
    return made


def _tagged(image: str) -> str:
    """Without a registry a digest cannot be had: its name stays."""
    name = image.partition("@")[0]
    return name if ":" in name.rpartition("/")[2] else f"{name}:{'lab' if '@' in image else 'latest'}"


class Peers(Cluster):
    def __init__(self, beside: str, nodes: int) -> None:
        super().__init__(beside, "native")
        self.launch = replace(LAUNCH, nodes=nodes)
        self.peers = prepared(nodes)

    def boot(self) -> None:
        super().boot()
        of_entrypoint = {peer.document["image"] for peer in self.peers if self._needs_entrypoint(peer)}
        others = {peer.document["image"] for peer in self.peers} - of_entrypoint
        text = json.dumps([peer.document for peer in self.peers])
        files = [*(f"--at={path}" for path in AT), *(f"--empty={path}" for path in sorted(set(BEFORE.findall(text))))]
        self.images(others, *files)
        self.images(of_entrypoint, "--entrypoint=vllm", "--entrypoint=serve")
        needs: dict[str, Any] = {"cache": CACHE, "paths": sorted(set(self.paths())), "models": []}
        for peer in self.peers:
            model = peer.document["model"]
            if model.startswith("/"):
                needs["paths"].append(model)
            else:
                needs["models"].append([model, peer.document.get("revision") or "0" * 40])
        for host in self.launch.hosts:
            self.node(host, f"sudo mkdir -p {CACHE} && sudo python3 - '{json.dumps(needs)}'", data=PREPARE.encode())

    @staticmethod
    def _needs_entrypoint(peer: Peer) -> bool:
        """Its words are those behind the image's own program."""
        return bool(peer.document.get("entrypoint")) and placement.program(peer.taken.argv())[0] is None

    def paths(self) -> Iterator[str]:
        for peer in self.peers:
            yield from (mount["source"] for mount in peer.document.get("mounts", []) if mount["source"] != CACHE)

    def images(self, names: set[str], *words: str) -> None:
        file = cluster.STATE / "peers.tar"
        command = [sys.executable, str(ROOT / "tests/lab/standin/image.py"), str(file), *self.options, "--anything"]
        subprocess.run([*command, *(f"--name={name}" for name in sorted(names)), *words], check=True)
        for host in self.launch.hosts:
            self.node(host, "sudo docker load", data=file.read_bytes())

    def rounds(self) -> list[list[Peer]]:
        """One that spans nodes at a time, and one of a single node beside it."""
        wide = [peer for peer in self.peers if len(peer.nodes) > 1]
        single = [peer for peer in self.peers if len(peer.nodes) == 1]
        return [[*wide[n : n + 1], *single[n : n + 1]] for n in range(max(len(wide), len(single)))]

    def settings(self, peers: Sequence[Peer]) -> tuple[str, str]:
        directories = ["/opt/sparkmatrix", "/usr", *sorted(set(self.paths()))]
        directories += [peer.document["model"] for peer in peers if peer.document["model"].startswith("/")]
        made = {"engine_services": [peer.entry for peer in peers], "engine_mount_directories": directories}
        return "-e", json.dumps({**made, "artifacts_hub_path": "/opt/sparkmatrix/engine"})


def argv(words: Sequence[str]) -> list[str]:
    """Words of an engine, without those that say where a rank is and whom it meets."""
    made: list[str] = []
    position = 0
    while position < len(words):
        name, equals, _value = words[position].partition("=")
        following = words[position + 1] if position + 1 < len(words) else ""
        ray = name == peer_sources.RAY and (following == "ray" or words[position].endswith("=ray"))
        if name in peer_sources.PLACED or ray:
            position += 1 + (not equals and name != "--headless")
            continue
        made.append(words[position])
        position += 1
    return made[made[:1] == ["serve"] :]


def wanted(peer: Peer) -> list[str]:
    """The source's words behind its program, as its shell makes them."""
    words = peer_sources.words(peer.fact)
    words = words[2 + (words[1] == "-m") if words[:1] == ["python3"] else len(peer.fact.get("program", [])) :]
    if peer.fact["kind"] not in peer_sources.YAML:
        texts = " ".join(peer_sources.quoted(word) for word in words)
        values = {**peer.taken.given, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {texts}"], env=values, capture_output=True, text=True, check=True
        )
        words = done.stdout.split("\0")[:-1]
    return argv(words)


def other(peer: Peer, found: Sequence[str], source: Sequence[str]) -> Iterator[object]:
    """What its engine was not told as the source has it: word by word, or by names where that is no command."""
    if peer.fact["kind"] == "env-file":
        names = {name.partition("=")[0] for name in found} | peer_sources.PLACED
        yield from (option for option in peer.fact["options"] if option[0] not in names)
    elif source:
        yield from (pair for pair in itertools.zip_longest(found, source) if pair[0] != pair[1])
    else:  # its tool makes the command of these
        for name, value in peer.fact["defaults"].items():
            if value is not True and str(value) not in found and name not in (*peer.taken.said.split(), "port", "host"):
                yield name, value


def compare(here: Peers, peer: Peer) -> None:
    """Every rank has the words and the variables of the source, and its own place."""
    source, variables = wanted(peer), peer_sources.real(peer.fact.get("environment", {}))
    document = peer.document.get("environment", {})
    for rank, host in enumerate(peer.nodes):
        started = json.loads(here.node(host, f"sudo cat {peer.record}"))
        found = argv(started["argv"][1:])
        if differs := list(other(peer, found, source)):
            raise LabError(f"{peer.id}: rank {rank} has {found}, but of its source {differs}")
        for name, value in document.items():
            seen = started["environment"].get(name)
            if seen is None or "@" in seen or ("@" not in value and seen != value):
                raise LabError(f"{peer.id}: {name} is {seen!r} and not {value!r}")
            given = variables.get(name, value) if isinstance(variables, Mapping) else value
            plain = "@" not in value and not re.search(r"\$|\{(?:config|launch)\.", str(given))
            if plain and seen != (str(given).lower() if isinstance(given, bool) else str(given)):
                raise LabError(f"{peer.id}: {name} is {seen!r}, in its source {given!r}")
        numbers = [
            started["argv"][at + 1] for at, word in enumerate(started["argv"]) if word in ("--node-rank", "--rank")
        ]
        if len(peer.nodes) > 1 and numbers != [str(rank)]:
            raise LabError(f"{peer.id}: rank {rank} is told {numbers}")
    peer.result["words"], peer.result["variables"] = len(source), len(document)


def answers(here: Peers, peer: Peer, alone: bool) -> None:
    which = "" if alone else f" --service {peer.entry['name']}"
    said = here.node(HEAD, f"sudo {TOOL} probe --json{which}", check=False)
    found = json.loads(said or "{}")
    if not found.get("ok") or found.get("model") != peer.document["served_model_name"]:
        raise LabError(f"{peer.id} does not answer: {found or said}")


def round_of(here: Peers, number: int, peers: Sequence[Peer]) -> dict[str, Any]:
    alone = len(peers) == 1
    run = here.site(f"peers-{number}", "playbooks/engine.yml" if number else "site.yml", *here.settings(peers))
    for peer in peers:
        compare(here, peer)
        answers(here, peer, alone)
        peer.result |= {"nodes": len(peer.nodes), "start_s": round(run.seconds)}

    def now(peer: Peer) -> dict[str, Any]:
        return here.status() if alone else status(here, HEAD, peer.entry["name"])

    before = {peer.id: len(now(peer)["history"]) for peer in peers}
    began = time.monotonic()
    for peer in peers:
        unit = "sparkmatrix-engine" if alone else f"sparkmatrix-engine-{peer.entry['name']}"
        here.node(peer.nodes[-1], f"sudo docker kill {unit}")
    left = list(peers)
    while left:
        for peer in list(left):
            found = now(peer)
            if len(found["history"]) > before[peer.id] and found["serving"]:
                peer.result["back_s"] = round(time.monotonic() - began)
                left.remove(peer)
        if left and time.monotonic() - began > BACK_S:
            raise LabError(f"{', '.join(peer.id for peer in left)} did not come back: {json.dumps(found)[-800:]}")
        time.sleep(0.5)
    for peer in peers:
        answers(here, peer, alone)
        cluster.say(f"   {peer.id}: {json.dumps(peer.result)}")
    return {peer.id: peer.result for peer in peers}


def served(here: Peers) -> dict[str, Any]:
    """Each: words and variables of its source on every rank, an answer, its last rank killed, and an answer again."""
    results: dict[str, Any] = {}
    problems = []
    for number, peers in enumerate(here.rounds()):
        try:
            results |= round_of(here, number, peers)
        except LabError as exc:
            problems.append(str(exc))
            cluster.say(f"   FAILED {', '.join(peer.id for peer in peers)}: {exc}")
    if problems:
        raise LabError("\n".join(problems))
    return results


def gone(here: Peers) -> dict[str, Any]:
    """Reset."""
    return reset(here, "peers-gone")


STEPS = {"served": served, "gone": gone}


def main() -> int:
    parser = cluster.options(__doc__, STEPS)
    parser.add_argument("--peer", default="", metavar="ID[,ID]", help="these recipes alone")
    parser.add_argument("--nodes", type=int, default=LAUNCH.nodes, choices=(2, 4))
    chosen = parser.parse_args()
    here = Peers(chosen.beside, chosen.nodes)
    if chosen.peer:
        here.peers = [peer for peer in here.peers if peer.id in chosen.peer.split(",")]
    return cluster.run_steps("peer_recipes", here, STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
