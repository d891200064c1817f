#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Container images on four simulated Sparks: one node has it, the others get it, whichever store their Docker has.

Usage: test_images.py [--only STEP[,STEP]] [--beside ID] [--keep]

The third node keeps images in containerd's store, the others in the classic one. Prints one JSON line.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import ROOT, LabError
from test_staying_up import Cluster

SEED, OTHERS = "spark1", ("spark2", "spark3", "spark4")
NODES = (SEED, *OTHERS)
IMAGE = "sparkmatrix.test/vllm-openai:v0.33.0"
UNUSED = "sparkmatrix.test/sglang:v0.5.23"
BIG = "sparkmatrix.test/big:1"
PORT = 29561
UNIT = "sparkmatrix-images"
TOKEN = "a" * 48
SEEN = {
    *("/:", "bin", "dev", "etc", "lib", "lib64", "proc", "run", "sys", "usr", "var"),
    *("/etc:", "ld.so.cache", "/run:", "sparkmatrix", "systemd", "/var/lib:", "docker"),
}
STORE = """sudo sh -c 'echo {\\"features\\":{\\"containerd-snapshotter\\":true}} > /etc/docker/daemon.json
systemctl stop docker.socket docker; systemctl start docker.socket'; sudo docker info --format '{{.DriverStatus}}'"""
# Of the node's own files: four layers, some hundred MB, as many small files as images have.
FILL = f"""
import hashlib, io, json, os, tarfile
trees = ('usr/lib/python3', 'usr/share', 'usr/bin', 'usr/lib/x86_64-linux-gnu')
kept = [tree for tree in trees if os.path.isdir('/' + tree)]
for number, tree in enumerate(kept):
    with tarfile.open(f'/var/tmp/{{number}}.tar', 'w', format=tarfile.PAX_FORMAT) as tar:
        tar.add('/' + tree, tree)
names = [f'/var/tmp/{{number}}.tar' for number in range(len(kept))]
ids = ['sha256:' + hashlib.sha256(open(name, 'rb').read()).hexdigest() for name in names]
config = json.dumps({{'architecture': ARCHITECTURE, 'os': 'linux', 'config': {{'Env': ['A=1']}},
    'rootfs': {{'type': 'layers', 'diff_ids': ids}}}}).encode()
manifest = json.dumps([{{'Config': 'c.json', 'RepoTags': ['{BIG}'], 'Layers': [n[9:] for n in names]}}]).encode()
with tarfile.open('/var/tmp/big.tar', 'w') as tar:
    for name, data in (('c.json', config), ('manifest.json', manifest)):
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    for name in names:
        tar.add(name, name[9:])
"""
LEFT = (
    "sudo docker image ls --format '{{.Repository}}' | grep ^127; ls /run/sparkmatrix/images.json 2>&-;"
    f" systemctl is-active --quiet {UNIT} && echo unit; sudo ss -Hltn sport = :{PORT}; true"
)


class Images(Cluster):
    def __init__(self, beside: str) -> None:
        super().__init__(beside, "native")
        options = ("-e", "engine_recipe=standin", "-e", "engine_runtime=container", "-e", "engine_launch=auto")
        self.launch = replace(self.launch, nodes=4, image=(), options=options)

    def load(self, *_words: str) -> None:
        """On one node only, and another store on the third."""
        said = self.node("spark3", STORE)
        if "io.containerd.snapshotter" not in said:
            raise LabError(f"Docker of spark3 has another store: {said}")
        hosts = self.launch.hosts
        self.launch = replace(self.launch, nodes=1)
        super().load()
        self.launch = replace(self.launch, nodes=len(hosts))

    def ids(self, name: str) -> dict[str, str]:
        ask = f"sudo docker image inspect --format '{{{{json .RootFS.Layers}}}}' {name} 2>&1 || true"
        return {host: self.node(host, ask).strip() for host in NODES}

    def whole(self, name: str) -> None:
        found = self.ids(name)
        if len(set(found.values())) != 1 or "sha256:" not in found[SEED]:
            raise LabError(f"{name} is not the same everywhere: {found}")
        left = {host: self.node(host, LEFT).strip() for host in NODES}
        if any(left.values()):
            raise LabError(f"something is left of the copy: {left}")

    def modules(self, hosts: str, name: str, options: dict[str, Any], fails: str = "") -> str:
        """A call by itself, on several nodes at once."""
        overlay = str((self.state / "overlay").relative_to(ROOT))
        command = [
            str(pathlib.Path(sys.executable).parent / "ansible"),
            hosts,
            "-i",
            "inventories/4spark",
            "-i",
            overlay,
        ]
        command += ["--become", "-m", "sparkmatrix.cluster.node", "-a", json.dumps({"call": name, "request": options})]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if bool(done.returncode) != bool(fails) or fails not in done.stdout:
            raise LabError(f"{name} on {hosts}: {done.stdout[-2000:]}{done.stderr[-1000:]}")
        return done.stdout

    def rail(self, host: str) -> str:
        """Its first address on the fabric."""
        fact = json.loads(self.node(host, "sudo cat /etc/ansible/facts.d/sparkmatrix.fact"))
        return str(fact["rails"][0]["address"])


def spread(here: Images) -> dict[str, Any]:
    """site.yml with an image that one node has: all serve from it, and nothing of the copy is left. A second run."""
    run = here.site("images")
    here.whole(IMAGE)
    again = here.site("images-again").unchanged()
    return {"seconds": round(run.seconds), "again_s": round(again.seconds), "executions": again.executions_per_node()}


def back(here: Images) -> dict[str, Any]:
    """Three nodes lose it; the one with the other store gives it."""
    here.site("images-stop", "playbooks/stop.yml")
    for host in (SEED, "spark2", "spark4"):
        here.node(host, f"sudo docker rm --force $(sudo docker ps --all --quiet) 2>&-; sudo docker image rm {IMAGE}")
    run = here.site("images-back", "playbooks/engine.yml")
    here.whole(IMAGE)
    return {"seconds": round(run.seconds)}


def built(here: Images) -> dict[str, Any]:
    """One node builds an image, and all serve from it; what serves cannot be removed, another one can."""
    file = here.state / "Dockerfile"
    file.write_text(f"FROM {IMAGE}\nARG WORD\nENV WORD=${{WORD}}\n")
    own = {"engine_image": "sparkmatrix.test/own:v0.33.0"}
    build = {"engine_image_build": {"dockerfile": str(file), "arguments": {"WORD": "built"}}}
    run = here.site("images-built", "site.yml", "-e", json.dumps({**own, **build}))
    (name,) = here.node(SEED, "sudo docker image ls --format '{{.Repository}}:{{.Tag}}' sparkmatrix.test/own").split()
    here.whole(name)
    for host in NODES:
        if "WORD=built" not in here.node(host, f"sudo docker image inspect {name}"):
            raise LabError(f"{name} on {host} was not built with its arguments")
    remove = ("playbooks/artifacts.yml", "-e", "artifacts_action=remove", "-e")
    here.site("images-kept", *remove, json.dumps({"artifacts_images": [name]}), fails="serves now")
    here.site("images-removed", *remove, json.dumps({"artifacts_images": [UNUSED]}))
    if UNUSED in here.node(SEED, "sudo docker image ls --format '{{.Repository}}:{{.Tag}}'"):
        raise LabError(f"{UNUSED} is still there")
    here.whole(name)
    return {"seconds": round(run.seconds), "name": name}


def figures(here: Images) -> dict[str, Any]:
    """`docker save | ssh docker load` one after the other, and ours, until all of them have an image of some 100 MB."""
    machine = here.node(SEED, "sudo docker version --format '{{.Server.Arch}}'").strip()
    here.node(SEED, "sudo python3 -", data=FILL.replace("ARCHITECTURE", repr(machine)).encode())
    here.node(SEED, "sudo docker load --quiet --input /var/tmp/big.tar; sudo rm /var/tmp/*.tar")
    size = int(here.node(SEED, f"sudo docker image inspect --format '{{{{.Size}}}}' {BIG}"))
    found: dict[str, Any] = {"image_mb": size // 10**6}
    config = str(here.state / "ssh_config")
    began = time.monotonic()
    for host in OTHERS:
        one = f"ssh -F {config} {SEED} sudo docker save {BIG} | ssh -F {config} {host} sudo docker load"
        subprocess.run(["sh", "-c", one], check=True, capture_output=True)
    found["save_load_s"] = round(time.monotonic() - began, 1)
    here.whole(BIG)
    for host in OTHERS:
        here.node(host, f"sudo docker image rm {BIG}")
    found |= ours(here)
    found["ratio"] = round(found["ours_s"] / found["save_load_s"], 2)
    here.whole(BIG)
    return found


def offer(here: Images, hosts: Sequence[str]) -> dict[str, Any]:
    """The one of SEED to these. What they are told."""
    told = {"addresses": [here.rail(SEED)], "images": [BIG]}
    allowed = {"allowed": [here.rail(host) for host in hosts], "token": TOKEN}
    said = here.modules(SEED, "image_fetch", {**told, **allowed})
    digest = re.search(r"offered.*?(sha256:[0-9a-f]{64})", said, re.DOTALL)
    receipt = {"image": BIG, "source": SEED, "addresses": told["addresses"]}
    return {"receipts": [receipt], "token": TOKEN, "offered": {SEED: {BIG: digest and digest[1]}}}


def ours(here: Images) -> dict[str, float]:
    began = time.monotonic()
    told = offer(here, OTHERS)
    first = time.monotonic() - began
    here.modules(",".join(OTHERS), "image_receive", told)
    seconds = time.monotonic() - began
    here.modules(SEED, "image_offer_end", {})
    return {"ours_s": round(seconds, 1), "of_it_until_offered_s": round(first, 1)}


def strangers(here: Images) -> dict[str, Any]:
    """A node that is not to have the image is not answered, nor one without the token; one whose source died says so.
    What offers images sees Docker's directories and nothing else of the node."""
    here.node("spark4", f"sudo docker image rm {BIG}")
    told = offer(here, ["spark2"])
    seen = here.node(
        SEED, f"sudo nsenter --mount --target $(systemctl show -P MainPID {UNIT}) ls -A / /etc /run /var/lib"
    )
    if set(seen.split()) - SEEN:
        raise LabError(f"what offers images sees {seen}")
    here.modules("spark4", "image_receive", told, fails="did not arrive from spark1")
    here.modules(SEED, "image_offer_end", {})
    here.modules("spark4", "image_receive", told, fails="Connection refused")
    told = offer(here, ["spark4"])
    here.modules("spark4", "image_receive", {**told, "token": "b" * 48}, fails="did not arrive from spark1")
    began = time.monotonic()
    here.modules("spark4", "image_receive", told)
    seconds = time.monotonic() - began
    here.modules(SEED, "image_offer_end", {})
    here.whole(BIG)
    return {"then_s": round(seconds, 1)}


STEPS: dict[str, Callable[[Images], dict[str, Any]]] = {
    step.__name__: step for step in (spread, back, built, figures, strangers)
}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    return cluster.run_steps("images", Images(chosen.beside), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
