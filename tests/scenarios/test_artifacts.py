#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model of a small hub comes to four nodes: fetched once, copied over the fabric, checked, repaired, and refused.

Usage: test_artifacts.py [--nodes N] [--ring] [--keep]. Runs the layers fabric, plan and artifacts; the engine's
environment has the hub's client. No engine runs: that one finds the model offline is asked of the hub's own library.
With ``--ring`` no switch connects them: a copy through neighbours only, two models at once, and a model that
is on the computer of Ansible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import time
from concurrent import futures

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import hub as hubs
from cluster import HEAD, STATE, LabError, inside, lab, say

NAME = "lab/model"
HOME = "/opt/sparkmatrix/models/huggingface"
FOLDER = f"{HOME}/hub/models--lab--model"
RING = ("-e", "fabric_topology=ring", "-e", "fabric_allow_large_ring=true")
LAYERS = ("--tags", "artifacts")
SHARDS, SHARD = 3, 70 * 1024 * 1024
RECIPE = """\
description: A model of the lab's hub
model: lab/model
served_model_name: lab-model
engine: vllm
device: cpu
architecture: {layers: 4, attention_heads: 12, kv_heads: 12, head_dim: 32, hidden_size: 384, vocab_size: 576}
weights_gb: 0.3
context: 256
concurrency: 2
"""


BEGUN = f"du -sb {HOME}/sparkmatrix/partial 2>/dev/null | cut -f1"


def model(seed: int) -> dict[str, bytes]:
    """Shards, an index, small files, and what no engine needs."""
    chance = random.Random(seed)
    files: dict[str, bytes] = {"config.json": b'{"architectures": ["LlamaForCausalLM"]}', "tokenizer.json": b"{}"}
    weights = {}
    for number in range(SHARDS):
        path = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        header = json.dumps({f"w{number}": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}).encode()
        files[path] = len(header).to_bytes(8, "little") + header + chance.randbytes(SHARD)
        weights[f"w{number}"] = path
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weights}).encode()
    files["original/consolidated.00.pth"] = b"x" * 1000
    files["model.gguf"] = b"GGUF" + bytes(1000)
    return files


class Scenario:
    def __init__(self, nodes: int, ring: bool) -> None:
        self.ring = ring
        self.nodes = [f"spark{number + 1}" for number in range(nodes)]
        self.place = STATE / "artifacts"
        self.seconds: dict[str, float] = {}
        self.executions = 0
        self.url = self.address = ""

    def boot(self) -> None:
        cluster.build()
        cluster.boot("ring" if self.ring else "switch", nodes=len(self.nodes))
        self.place.mkdir(exist_ok=True)
        for name in ("model", "other", "mine"):
            (self.place / f"hub-{name}.yml").write_text(RECIPE.replace("lab/model", f"lab/{name}"))

    def serve(self) -> hubs.Hub:
        """A hub on this machine, at the address that the nodes come to."""
        seen = subprocess.run(
            ["ssh", "-F", str(STATE / "ssh_config"), HEAD, "ip -4 route show default"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        self.address = seen[seen.index("via") + 1]
        return hubs.Hub({NAME: hubs.repository(model(1)), "lab/other": hubs.repository(model(2))})

    def play(
        self, name: str, *options: str, fails: str = "", playbook: str = "site.yml", unchanged: bool = False
    ) -> str:
        run = cluster.play(
            f"artifacts-{name}",
            "-e",
            json.dumps(
                {
                    "engine_recipe": "hub-model",
                    "engine_recipe_paths": [str(self.place)],
                    "engine_environment": {"HF_ENDPOINT": self.url},
                    "artifacts_hub_path": "/opt/sparkmatrix/engine",
                }
            ),
            *(RING if self.ring else ()),
            *options,
            playbook=playbook,
            show=False,
        )
        said = (STATE / f"artifacts-{name}.log").read_text(errors="replace")
        flat = " ".join(said.split())
        if bool(run.code) != bool(fails) or fails not in flat:
            raise LabError(f"{name}: ended with {run.code}, expected {fails or 'success'!r}\n{said[-6000:]}")
        if unchanged and run.changed:
            raise LabError(f"{name}: changed {run.stats.get('changed_tasks')}")
        self.seconds[name] = round(run.seconds, 1)
        self.executions = run.executions_per_node()
        say(f"   {name}: as expected, {run.seconds:.0f} s")
        return flat

    def everywhere(self, commit: str, files: dict[str, bytes], name: str = NAME) -> None:
        """Every node has exactly the files that an engine needs, and one manifest."""
        folder = f"models--{name.replace('/', '--')}"
        wanted = {
            path: hashlib.sha256(content).hexdigest()
            for path, content in files.items()
            if path != "model.gguf" and not path.startswith("original/")
        }
        digests = set()
        for host in self.nodes:
            text = inside(host, f"cd {HOME}/hub/{folder}/snapshots/{commit} && find . -type l | sort | xargs sha256sum")
            seen = {line.split()[1][2:]: line.split()[0] for line in text.splitlines()}
            if seen != wanted:
                raise LabError(f"{host} has {seen}, expected {wanted}")
            digests.add(inside(host, f"cat {HOME}/sparkmatrix/manifests/{folder}/{commit}.json"))
            left = inside(host, f"find {HOME}/sparkmatrix/partial -type f 2>/dev/null || true")
            if left.strip():
                raise LabError(f"{host}: left behind: {left}")
        if len(digests) != 1:
            raise LabError("the manifests differ")


def first(s: Scenario, hub: hubs.Hub) -> None:
    files = hub.repositories[NAME].files[hubs.commit(model(1))]
    planned = s.play("check", *LAYERS, "--check")
    assert "spark1 fetches 220.2 MB" in planned, planned[-3000:]
    assert hub.bytes_sent < SHARD, "a check has downloaded"
    s.play("first", *LAYERS)
    s.everywhere(hubs.commit(files), files)
    # Once, and not by every node.
    assert SHARDS * SHARD < hub.bytes_sent < SHARDS * SHARD * 1.2, hub.bytes_sent
    asked = len(hub.asked)
    s.play("again", *LAYERS, unchanged=True)
    assert len(hub.asked) == asked, "an unchanged run asks the hub"
    say(f"   an unchanged run: {s.executions} module calls per node, {s.seconds['again']} s")
    offline = (
        f"HF_HUB_OFFLINE=1 HF_HOME={HOME} /opt/sparkmatrix/engine/bin/python -c"
        f" \"import huggingface_hub; print(huggingface_hub.snapshot_download('{NAME}'))\""
    )
    for host in s.nodes:
        assert "snapshots" in inside(host, offline)


COMMIT, FILES = hubs.commit(model(1)), model(1)


def corrupted(s: Scenario, hub: hubs.Hub) -> None:
    """A byte of the same size: found by reading all, and mended from a neighbour."""
    host = s.nodes[-1]
    blob = f"$(readlink -f {FOLDER}/snapshots/{COMMIT}/model-00002-of-00003.safetensors)"
    inside(
        host,
        f"touch -r {blob} /tmp/when; printf x | dd of={blob} bs=1 seek=1000000 conv=notrunc status=none;"
        f" touch -r /tmp/when {blob}",
    )
    said = s.play(
        "verify", "-e", "artifacts_action=verify", playbook="playbooks/artifacts.yml", fails="does not have the content"
    )
    assert f"lab/model on {host}: model-00002-of-00003.safetensors does not have the content" in said
    sent = hub.bytes_sent
    said = s.play("repair", "-e", "artifacts_action=repair", playbook="playbooks/artifacts.yml")
    (came,) = re.findall(rf"lab/model is whole on {host}: ([\d.]+) MB from", said)
    assert float(came) < 10, said[-3000:]
    assert hub.bytes_sent == sent
    s.everywhere(COMMIT, FILES)


def killed(s: Scenario, _hub: hubs.Hub) -> None:
    """The receiver's unit dies in the middle: it is named, and the next run goes on where it was."""
    host = s.nodes[-1]
    inside(host, f"rm -rf {FOLDER} {HOME}/sparkmatrix")
    slow = ("-e", "artifacts_rate_mb_s=10")
    kill = (
        f"i=0; until [ 0$({BEGUN}) -gt 60000000 ];"
        " do sleep 0.3; i=$((i+1)); [ $i -lt 600 ] || exit 1; done; systemctl kill -s KILL sparkmatrix-artifacts"
    )
    with futures.ThreadPoolExecutor() as pool:
        done = pool.submit(inside, host, kill)
        said = s.play("killed", *LAYERS, *slow, fails="it ended without a word while copying lab/model")
        done.result()
    assert host in said
    said = s.play("resumed", *LAYERS)
    s.everywhere(COMMIT, FILES)
    assert "220.2 MB from" not in said, said[-2000:]


def full(s: Scenario, hub: hubs.Hub) -> None:
    """A disk without room is named with the missing bytes, before a byte moves."""
    host = s.nodes[-1]
    inside(host, f"rm -rf {FOLDER} {HOME}/sparkmatrix && mount -t tmpfs -o size=100m tmpfs {HOME}")
    sent = hub.bytes_sent
    try:
        s.play("short", *LAYERS, fails=f"{host} {HOME}: lab/model: 0.3 GB to download, 0.1 GB free")
        exact = ("-e", json.dumps({"preflight_severity": {"model_disk": "skip"}}))
        said = s.play("full", *LAYERS, *exact, fails="are missing")
        assert f"{host}: lab/model needs 220.2 MB" in said, said[-2000:]
        assert hub.bytes_sent == sent
    finally:
        inside(host, f"umount -l {HOME}")
    s.play("roomy", *LAYERS)
    s.everywhere(COMMIT, FILES)


def revision(s: Scenario, hub: hubs.Hub) -> None:
    """A newer commit at the hub is not taken by chance; when it is asked for, only what differs moves."""
    files = {**FILES, "tokenizer.json": b'{"newer": true}'}
    newer = hubs.commit(files)
    hub.repositories[NAME] = hubs.repository(files)
    s.play("old", *LAYERS, unchanged=True)
    recipe = s.place / "hub-model.yml"
    recipe.write_text(RECIPE.replace("model: lab/model\n", f"model: lab/model\nrevision: {newer}\n"))
    sent = hub.bytes_sent
    s.play("newer", *LAYERS)
    s.everywhere(newer, files)
    assert hub.bytes_sent - sent < 1000, hub.bytes_sent - sent
    listed = s.play("list", playbook="playbooks/artifacts.yml")
    assert "lab/model" in listed and "without a manifest" not in listed
    s.play("dry", "-e", "artifacts_action=remove", "--check", playbook="playbooks/artifacts.yml")
    s.everywhere(newer, files)


def archive(s: Scenario, hub: hubs.Hub) -> None:
    """Written on the head, everything removed, and brought back from it without the hub."""
    path = "/var/tmp/models.tar"
    more = ("-e", json.dumps({"artifacts_models": [NAME], "artifacts_archive": path, "artifacts_action": "export"}))
    s.play("export", *more, playbook="playbooks/artifacts.yml")
    recipe = s.place / "hub-model.yml"
    recipe.write_text(RECIPE)
    for host in s.nodes:
        inside(host, f"rm -rf {FOLDER} {HOME}/sparkmatrix")
    sent = hub.bytes_sent
    s.play("import", *LAYERS, "-e", json.dumps({"artifacts_sources": {NAME: path}}))
    assert hub.bytes_sent == sent
    assert len({inside(host, f"cat {FOLDER}/refs/main") for host in s.nodes}) == 1


def reset(s: Scenario, _hub: hubs.Hub) -> None:
    s.play("reset", *LAYERS, playbook="reset.yml")
    for host in s.nodes:
        left = inside(host, f"ls -d {HOME}/sparkmatrix /opt/sparkmatrix/hub 2>/dev/null || true")
        assert not left.strip(), left
        assert inside(host, f"ls {FOLDER}/snapshots")


def neighbours(s: Scenario, _hub: hubs.Hub) -> None:
    """In a ring it comes from a neighbour, and goes on from there."""
    said = s.play("neighbours", *LAYERS)
    s.everywhere(COMMIT, FILES)
    for number, host in enumerate(s.nodes[1:], start=1):
        (told, *_more) = re.findall(rf"lab/model is whole on {host}: ([^'\"]*)", said)
        sources = set(re.findall(r"from (spark\d+)", told))
        assert sources and sources <= {s.nodes[number - 1], s.nodes[(number + 1) % len(s.nodes)]}, told


def two(s: Scenario, _hub: hubs.Hub) -> None:
    """Two models at once: the second run says what is on its way, the first one ends well; then the second one does."""
    for host in s.nodes[1:]:
        inside(host, f"rm -rf {FOLDER} {HOME}/sparkmatrix")
    begun = f"i=0; until [ 0$({BEGUN}) -gt 1000000 ]; do sleep 0.3; i=$((i+1)); [ $i -lt 900 ]; done"
    other = ("-e", "engine_recipe=hub-other")
    with futures.ThreadPoolExecutor() as pool:
        future = pool.submit(s.play, "one", *LAYERS, "-e", "artifacts_rate_mb_s=5")
        inside(s.nodes[1], begun)
        s.play("two", *LAYERS, *other, fails="this node is copying lab/model")
        future.result()
    s.everywhere(COMMIT, FILES)
    s.play("two-again", *LAYERS, *other)
    s.everywhere(hubs.commit(model(2)), model(2), "lab/other")
    s.everywhere(COMMIT, FILES)


def controller(s: Scenario, hub: hubs.Hub) -> None:
    """From a directory on this machine, without a hub: refused with a link to nothing, cut off, and gone on with."""
    mine, files, asked = s.place / "mine", model(3), len(hub.asked)
    for path, content in files.items():
        (mine / path).parent.mkdir(parents=True, exist_ok=True)
        (mine / path).write_bytes(content)
    (mine / "tokenizer.json").rename(mine / "real.json")
    files["real.json"] = files["tokenizer.json"]
    (mine / "tokenizer.json").symlink_to("nowhere.json")
    source = (
        "-e",
        "engine_recipe=hub-mine",
        "-e",
        json.dumps({"artifacts_sources": {"lab/mine": f"controller:{mine}"}}),
    )
    s.play("dangling", *LAYERS, *source, fails="tokenizer.json")
    (mine / "tokenizer.json").unlink()
    (mine / "tokenizer.json").symlink_to("real.json")
    planned = s.play("look", *LAYERS, *source, "--check")
    assert "spark1 gets 220.2 MB from this computer" in planned, planned[-3000:]
    kill = (
        f"i=0; until [ 0$({BEGUN}) -gt 70000000 ];"
        " do sleep 0.02; i=$((i+1)); [ $i -lt 9000 ] || exit 1; done;"
        " pkill -KILL -f '^[^ ]*python.*[a]rtifacts receive .* take'"
    )
    with futures.ThreadPoolExecutor() as pool:
        done = pool.submit(inside, HEAD, kill)
        s.play("cut", *LAYERS, *source, fails="Send the model from this computer")
        done.result()
    said = s.play("sent", *LAYERS, *source)
    (sent,) = re.findall(r"([\d.]+) MB of 220.2 MB were sent", said)
    assert 0 < float(sent) < 160, sent
    (commit,) = inside(HEAD, f"ls {HOME}/hub/models--lab--mine/snapshots").split()
    s.everywhere(commit, files, "lab/mine")
    s.play("sent-again", *LAYERS, *source, unchanged=True)
    assert len(hub.asked) == asked, "a hub was asked"


SWITCH = ("first", "corrupted", "killed", "full", "revision", "archive", "reset")
CASES = {
    "first": first,
    "corrupted": corrupted,
    "killed": killed,
    "full": full,
    "revision": revision,
    "archive": archive,
    "reset": reset,
    "neighbours": neighbours,
    "two": two,
    "controller": controller,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ring", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", action="store_true", help="the lab stays, and the next call goes on with it")
    options = parser.parse_args()
    s = Scenario(options.nodes, options.ring)
    cases = options.only.split(",") if options.only else [one for one in CASES if (one in SWITCH) != options.ring]
    began = time.monotonic()
    try:
        up = (s.place / "up").exists()
        if not up:
            s.boot()
        hub = s.serve()
        with hub.serve(s.address, large=s.address) as s.url:
            if not up:
                s.play("fabric", "--tags", "fabric,access")
                (s.place / "up").touch()
            for name in cases:
                say(f"-- {name}")
                CASES[name](s, hub)
    except (LabError, AssertionError) as exc:
        say(f"failed: {exc}")
        return 1
    finally:
        if not options.keep:
            (s.place / "up").unlink(missing_ok=True)
            cluster.step("Remove the lab", lab("down"), "down.log")
    say(f"passed in {time.monotonic() - began:.0f} s: {s.seconds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
