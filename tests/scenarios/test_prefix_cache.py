#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine has computed of prompts comes back from the disk, for whom it was computed, and stays below its limit.

Usage: test_prefix_cache.py [--only STEP[,STEP]] [--beside ID] [--keep]

One simulated Spark behind the gateway, with vLLM on a CPU and a tiny model; tests/lab/plain_copies.py copies. Prints
one JSON line.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import ROOT, LabError
from test_by_name import GATEWAY, program
from test_services import invocation
from test_staying_up import BACK_S, HEAD, MODELS, Cluster

SECOND = "second"
ENGINE, PREFIXES = "sparkmatrix-engine", "sparkmatrix-prefixes"
BASE = "/var/lib/sparkmatrix/prefixes"
OWN = f"{BASE}/{ENGINE}"
PLACES = (BASE, f"/etc/systemd/system/{PREFIXES}*")
LIMIT = 10**9
LONG = 8000  # tokens
WARM, COLD = 0.25, 0.6  # of what it takes cold, at most and at least
AGAIN_S = 30.0  # until systemd has started a helper anew
COPIES = "/opt/sparkmatrix/plain_copies"
KEYS = [{"name": "default"}, {"name": SECOND}]
ENGINE_SETTINGS = {"engine_recipe": "tiny-llama-kept", "engine_environment": {"PYTHONPATH": COPIES}}
SETTINGS = {**ENGINE_SETTINGS, **GATEWAY, "gateway_keys": KEYS}
# The model with room for long prompts; who copies.
PLACE = f"""
import json, pathlib, shutil
made, copies = pathlib.Path('{MODELS}/kept'), pathlib.Path('{COPIES}')
shutil.copytree('{MODELS}/tiny-llama', made, dirs_exist_ok=True)
config = json.loads((made / 'config.json').read_text())
(made / 'config.json').write_text(json.dumps({{**config, 'max_position_embeddings': 16384}}))
described = copies / 'plain_copies-0.dist-info'
described.mkdir(parents=True, exist_ok=True)
(copies / 'plain_copies.py').write_text(TEXT)
(described / 'METADATA').write_text('Metadata-Version: 2.1\\nName: plain_copies\\nVersion: 0\\n')
(described / 'entry_points.txt').write_text('[vllm.general_plugins]\\nplain_copies = plain_copies:install\\n')
"""
# Other weights under the same name.
OTHER = f"""
import pathlib
file = pathlib.Path('{MODELS}/kept/model.safetensors')
data = file.read_bytes()
begin = 8 + int.from_bytes(data[:8], 'little')
file.write_bytes(data[:begin] + data[begin + 4096 :] + data[begin : begin + 4096])
"""
# Seconds until a long prompt of this number has its first tokens, by the gateway, and what they are.
ASK = f"""
import http.client, json, random, sys, time
name, salt, numbers = sys.argv[1], sys.argv[2], sys.argv[3:]
key = open('/etc/sparkmatrix/gateway/keys/' + name + '.key').read().strip()
head = {{'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'}}
found = []
for number in numbers:
    chance = random.Random(int(number))
    body = {{'model': 'kept', 'prompt': [chance.randrange(10, 500) for _ in range({LONG})], 'max_tokens': 4,
            'ignore_eos': True, 'temperature': 0}}
    if salt != '-':
        body['cache_salt'] = salt
    way = http.client.HTTPConnection('127.0.0.1', 8443, timeout=300)
    began = time.monotonic()
    way.request('POST', '/v1/completions', json.dumps(body), head)
    got = way.getresponse()
    said = json.loads(got.read())
    if got.status != 200:
        sys.exit(str(said))
    found.append({{'seconds': round(time.monotonic() - began, 2), 'text': said['choices'][0]['text']}})
print(json.dumps({{'asked': found}}))
"""


class Kept(Cluster):
    def __init__(self, beside: str) -> None:
        super().__init__(beside, "native")
        self.launch = replace(self.launch, nodes=1)
        self.cold_s = 0.0
        self.texts: dict[int, str] = {}  # what was said to each prompt at first

    def boot(self) -> None:
        super().boot()
        copies = (ROOT / "tests/lab/plain_copies.py").read_text()
        self.node(HEAD, "sudo python3 -", data=PLACE.replace("TEXT", repr(copies)).encode())

    def ask(self, *numbers: int, key: str = "default", salt: str = "-") -> list[float]:
        """Seconds of each; every answer has to be what it was."""
        asked = program(self, ASK, key, salt, *map(str, numbers))["asked"]
        for number, one in zip(numbers, asked):
            if self.texts.setdefault(number, one["text"]) != one["text"]:
                raise LabError(f"prompt {number} is answered otherwise: {one['text']!r}, not {self.texts[number]!r}")
        return [one["seconds"] for one in asked]

    def warm(self, *numbers: int, **more: str) -> list[float]:
        found = self.ask(*numbers, **more)
        if max(found) > WARM * self.cold_s:
            raise LabError(f"computed anew: {found} s, cold {self.cold_s} s: {self.tell()}")
        return found

    def cold(self, *numbers: int, **more: str) -> list[float]:
        found = self.ask(*numbers, **more)
        if min(found) < COLD * self.cold_s:
            raise LabError(f"not computed anew: {found} s, cold {self.cold_s} s")
        return found

    def tell(self) -> str:
        said = f"sudo journalctl --no-pager -n 20 -u {PREFIXES} -u {ENGINE}; sudo find {BASE} | head -n 20"
        return self.node(HEAD, said, check=False)

    def run(self, name: str, gb: int) -> cluster.Run:
        return self.site(name, "site.yml", "-e", json.dumps({**SETTINGS, "engine_prefix_cache_gb": gb}))

    def back(self, before: str = "") -> None:
        """Until it serves, as another process than before."""

        def serves(status: dict[str, Any]) -> bool:
            return bool(status["serving"]) and invocation(self, HEAD, ENGINE) != before

        self.wait("serving", BACK_S, serves)

    def restart(self) -> None:
        before = invocation(self, HEAD, ENGINE)
        self.node(HEAD, f"sudo systemctl stop {ENGINE}")  # the keeper starts it: with restart both would
        self.back(before)

    def bytes(self) -> int:
        return int(self.node(HEAD, f"sudo du --summarize --block-size=1 {OWN}").split()[0])

    def unit(self, name: str) -> str:
        return self.node(HEAD, f"systemctl show -P ActiveState {name}").strip()


def plain(here: Kept) -> dict[str, Any]:
    """Without it: what a long prompt takes."""
    run = here.run("prefix-cache-plain", 0)
    here.ask(0)
    cold = here.ask(1, 2, 3)
    here.lacks(HEAD, *PLACES)
    return {"seconds": round(run.seconds), "cold_s": cold}


def kept(here: Kept) -> dict[str, Any]:
    """With it: first cold, warm, and after a restart of engine and relay."""
    run = here.run("prefix-cache", 1)
    here.ask(0)
    cold = here.ask(1, 2, 3)
    here.cold_s = statistics.median(cold)
    warm = here.warm(1, 2, 3)
    mode = here.node(HEAD, f"sudo stat -c '%U %a' {OWN}").strip()
    if mode != "sparkmatrix 700":
        raise LabError(f"{OWN}: {mode}")
    here.restart()
    here.node(HEAD, "sudo systemctl restart sparkmatrix-relay")
    back = here.warm(1, 2, 3)
    return {"seconds": round(run.seconds), "cold_s": cold, "warm_s": warm, "restarted_s": back, "bytes": here.bytes()}


def again(here: Kept) -> dict[str, Any]:
    """Changes nothing."""
    run = here.run("prefix-cache-again", 1).unchanged()
    return {"seconds": round(run.seconds)}


def apart(here: Kept) -> dict[str, Any]:
    """Another key has to compute what the first one has, and has its own then; nobody names another's."""
    other = here.cold(1, key=SECOND)
    named = here.cold(2, key=SECOND, salt="default")
    own = here.warm(1, key=SECOND)
    first = here.warm(1, 2, 3)
    here.restart()
    return {
        "other_key_s": other,
        "named_s": named,
        "own_s": own,
        "first_s": first,
        "restarted_s": [*here.warm(1, key=SECOND), *here.warm(1)],
    }


def killed(here: Kept) -> dict[str, Any]:
    """SIGKILL to the helper, which nobody notices; to the engine; to both."""
    found: dict[str, Any] = {}
    kill = "sudo systemctl kill --signal=KILL --kill-whom=main"
    before, helper = invocation(here, HEAD, ENGINE), invocation(here, HEAD, PREFIXES)
    here.node(HEAD, f"{kill} {PREFIXES}")
    began = time.monotonic()
    while invocation(here, HEAD, PREFIXES) == helper or here.unit(PREFIXES) != "active":
        if time.monotonic() - began > AGAIN_S:
            raise LabError(f"{PREFIXES} did not come back: {here.tell()}")
        time.sleep(1)
    found["helper_s"] = round(time.monotonic() - began)
    time.sleep(5)
    if invocation(here, HEAD, ENGINE) != before:
        raise LabError(f"the engine was restarted, too: {here.tell()}")
    found["helper_warm_s"] = here.warm(1)
    for name, words in (("engine", ENGINE), ("both", f"{ENGINE} {PREFIXES}")):
        before = invocation(here, HEAD, ENGINE)
        began = time.monotonic()
        here.node(HEAD, f"{kill} {words}")
        here.back(before)
        found[f"{name}_back_s"] = round(time.monotonic() - began)
        found[f"{name}_warm_s"] = here.warm(2)
        if here.unit(PREFIXES) != "active":
            raise LabError(f"{PREFIXES} does not run: {here.tell()}")
    found["in_memory"] = here.node(HEAD, "ls /dev/shm").split()
    return found


def limited(here: Kept) -> dict[str, Any]:
    """More than the limit, and older: it goes, and what was asked for stays."""
    key = here.node(HEAD, f"sudo find {OWN} -mindepth 1 -maxdepth 1 -type d").split()[0]
    fill = f"fallocate -l 300M {key}/old-$n; touch -d @1000 {key}/old-$n; chown sparkmatrix: {key}/old-$n"
    here.node(HEAD, f"sudo sh -c 'for n in 1 2 3 4; do {fill}; done'")
    began = time.monotonic()
    while here.bytes() > LIMIT:
        if time.monotonic() - began > AGAIN_S:
            raise LabError(f"{here.bytes()} bytes: {here.tell()}")
        time.sleep(1)
    seconds = round(time.monotonic() - began)
    here.restart()
    return {"below_s": seconds, "bytes": here.bytes(), "warm_s": here.warm(1, 3)}


def full(here: Kept) -> dict[str, Any]:
    """A disk with room for two prompts: everybody is answered, and a twentieth stays free."""
    here.node(HEAD, f"sudo systemctl stop sparkmatrix-keeper {ENGINE}")
    here.node(HEAD, f"sudo mount -t tmpfs -o size=120m,mode=0700,uid=sparkmatrix,gid=sparkmatrix none {OWN}")
    here.node(HEAD, "sudo systemctl start sparkmatrix-keeper")
    here.back()
    seconds = here.ask(11, 12, 13, 14)
    time.sleep(8)  # two looks
    size, free = here.node(HEAD, f"df --output=size,avail --block-size=1 {OWN} | tail -n 1").split()
    here.node(HEAD, f"sudo systemctl stop sparkmatrix-keeper {ENGINE} && sudo umount {OWN}")
    here.node(HEAD, "sudo systemctl start sparkmatrix-keeper")
    here.back()
    if int(free) < int(size) // 20:
        raise LabError(f"{free} of {size} bytes are free")
    return {"asked_s": seconds, "free": int(free), "of": int(size), "warm_s": here.warm(1)}


def changed(here: Kept) -> dict[str, Any]:
    """Other weights under the same name: nothing that was computed from the old ones is read."""
    here.node(HEAD, "sudo python3 -", data=OTHER.encode())
    here.texts = {}
    here.restart()
    found = here.cold(1)
    if "computed from other files" not in here.node(HEAD, f"sudo journalctl --no-pager -n 20 -u {PREFIXES}"):
        raise LabError(f"nothing was removed: {here.tell()}")
    return {"seconds": found}


def gone(here: Kept) -> dict[str, Any]:
    """Undo."""
    run = here.site("prefix-cache-gone", "reset.yml", "--tags", "gateway,engine")
    here.lacks(HEAD, *PLACES, "/dev/shm/vllm*")
    return {"seconds": round(run.seconds)}


STEPS = {step.__name__: step for step in (plain, kept, again, apart, killed, limited, full, changed, gone)}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    return cluster.run_steps("prefix_cache", Kept(chosen.beside), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
