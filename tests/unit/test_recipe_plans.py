# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every shipped recipe on 1, 2, 3, 4 and 8 nodes: plan, argv and environment stay as they are until that is wanted.

fixtures/plans.json has two digests for each, of the plan and of what is rendered from it, and what is warned of or
refused by severity and place. Written anew: WRITE_FIXTURES=1 pytest -n0 tests/unit/test_recipe_plans.py

What a digest stands for, to compare two checkouts of the repository:
PYTHONPATH=collections:tests/unit python tests/unit/test_recipe_plans.py qwen3-8b ray 2
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import ray_files, service_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import GPU, facts, required

NAMES = sorted(path.stem for path in engine_recipe.SHIPPED.glob("*.yml"))
FIXTURE = Path(__file__).parent / "fixtures/plans.json"
NODES = (1, 2, 3, 4, 8)
WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "ray": {"launch": "ray"},
    "image": {"engine": "vllm", "runtime": "container", "image": "nvcr.io/nvidia/vllm:26.05-py3"},
}
SHOW = "PYTHONPATH=collections:tests/unit python tests/unit/test_recipe_plans.py"


def made(name: str, count: int, way: str) -> tuple[Any, Any, list[str]]:
    """The plan by host, what is rendered from it by host and path, and what is found, by severity and place."""
    entry = services.Entry(services.ALONE, (), 1.0, {})
    recipe = required(*engine_recipe.find(name, ()))
    settings = UserSettings(requirements=GPU, allow=("command", "trust-remote-code"), **WAYS[way])
    service = services.Service(entry, recipe, settings)
    result = services.plan([service], facts(count), {}, firewall=True)
    found = sorted(
        {
            f"{finding.severity} {finding.host.replace(name, '…')} {finding.device}".strip()
            for finding in result.findings
        }
    )
    plans = {host: plan.as_dict() for host, plan in result.plans.items()}
    return plans, {host: rendered(plan) for host, plan in result.plans.items()}, found


def rendered(plan: Any) -> dict[str, str]:
    """What a rank or Ray reads on a node, without comments and the hashes that follow from it."""
    marks = service_files.Marks("key", {image.name: "id" for image in plan.images}, "tool")
    files = dict(service_files.node(plan, service_files.Settings(), marks).files)
    for service in plan.here:
        del files[service.names.description]  # the keeper's
    if plan.ray.needed:
        files |= ray_files.make(plan, ray_files.Settings(), "token", "id").files
    return {path: "\n".join(filter(told, text.splitlines())) for path, text in sorted(files.items())}


def told(line: str) -> bool:
    return not line.lstrip().startswith("#") and HASH_VARIABLE not in line


def digests(name: str, count: int, way: str) -> str:
    plans, files, found = made(name, count, way)
    both = [hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:10] for part in (plans, files)]
    return "; ".join([" ".join(both) if plans else "refused", *found])


def test_plans_and_commands_are_as_before():
    now = {
        f"{name} {way}": {str(count): digests(name, count, way) for count in NODES} for name in NAMES for way in WAYS
    }
    if os.environ.get("WRITE_FIXTURES"):
        lines = [f"{json.dumps(case)}: {json.dumps(found, ensure_ascii=False)}" for case, found in now.items()]
        FIXTURE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    before = json.loads(FIXTURE.read_text(encoding="utf-8"))
    other = [
        f"{case} {count}: {before.get(case, {}).get(count)} -> {now.get(case, {}).get(count)}"
        for case in before | now
        for count in map(str, NODES)
        if before.get(case, {}).get(count) != now.get(case, {}).get(count)
    ]
    assert not other, "\n".join([*other, f"Print it in both checkouts: {SHOW} {other[0].partition(':')[0]}"])


if __name__ == "__main__":
    name, way, count = sys.argv[1:]
    print(json.dumps(made(name, int(count), way), indent=1, sort_keys=True, ensure_ascii=False))
