# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The role awx run in this process, with its own variables and tasks and the modules of awx.awx, against AWX's API in
memory (:mod:`awx_api`). Needs the collection awx.awx, which the package ansible has up to version 12.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import pathlib
import urllib.error
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action.plan import PLANNERS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from awx_api import PREFIX, TOKEN, Api
from module_runner import run_module

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/awx"
PLAYBOOKS = tuple(sorted(f"playbooks/{path.name}" for path in ROOT.glob("playbooks/*.yml")))
MODULES = "ansible_collections.awx.awx.plugins"
SETTINGS: Mapping[str, Any] = {
    "awx_image": "registry.example.com/sparkmatrix-ee",
    "awx_project_url": "https://git.example.com/cluster.git",
    "awx_inventory_file": "inventories/mine/hosts.yml",
    "awx_known_hosts": "known_hosts",
    "awx_notifications": ["https://hooks.example.com/x"],
}


@dataclass
class Run:
    changed: list[str] = field(default_factory=list)  # what was or would be made, mended or removed
    refused: str = ""
    plan: dict[str, Any] = field(default_factory=dict)


@functools.cache
def load(name: str) -> Any:
    return DataLoader().load_from_file(str(ROLE / name), trusted_as_template=True)


def variables(**settings: Any) -> dict[str, Any]:
    """Of the role, as a run has them."""
    files = ["defaults/main.yml", *(f"vars/main/{path.name}" for path in sorted(ROLE.glob("vars/main/*.yml")))]
    found = {name: value for file in files for name, value in load(file).items()}
    return {**found, **SETTINGS, **settings}


def objects(**settings: Any) -> dict[str, Any]:
    """What the data says, with its templates filled in: every controller_ variable."""
    values = variables(**settings)
    templar = Templar(DataLoader(), values)
    return {name: templar.template(text) for name, text in values.items() if name.startswith("controller_")}


class Awx:
    def __init__(self, api: Api, patch: pytest.MonkeyPatch) -> None:
        self.api = api
        patch.setenv("CONTROLLER_HOST", "http://127.0.0.1:1")
        patch.setenv("CONTROLLER_OAUTH_TOKEN", TOKEN)
        code = importlib.import_module(f"{MODULES}.module_utils.controller_api")
        patch.setattr(code.Request, "open", self._open)
        # Ansible's own loader would take over all imports of collections.
        patch.setattr(lookup_loader, "get", lambda name, **_options: _Lookup(self))

    def run(self, check: bool = False, **settings: Any) -> Run:
        values = {**variables(**settings), "ansible_check_mode": check}
        (compare,) = (task for task in load("tasks/main.yml") if "register" in task)
        options = Templar(DataLoader(), values).template(compare["sparkmatrix.cluster.plan"]["options"])
        plan = planner.run("awx", PLANNERS["awx"], options, {})
        if plan.get("failed"):
            return Run(refused=plan["msg"], plan=plan)
        values["__awx_plan"] = plan
        done = Run(list(plan["would"]), plan=plan)
        for name in ["present", "absent"] if values["awx_state"] == "present" else ["absent"]:
            for task in load(f"tasks/{name}.yml"):
                for action in task:
                    if action.startswith("awx.awx."):
                        done.changed += self._loop(task, action.removeprefix("awx.awx."), values, check)
        return done

    def _loop(self, task: Mapping[str, Any], module: str, values: dict[str, Any], check: bool) -> list[str]:
        code = importlib.import_module(f"{MODULES}.modules.{module}")
        changed = []
        for item in Templar(DataLoader(), values).template(task["loop"]):
            templar = Templar(DataLoader(), {**values, "item": item})
            args = json.loads(json.dumps(templar.template(task[f"awx.awx.{module}"])))
            result, failed = run_module(code, args, check=check)
            assert not failed and not result.get("warnings"), (module, args, result)
            if result["changed"]:
                changed.append(f"{module} {templar.template(task['loop_control']['label'])}")
        return changed

    def _open(self, method: str, url: str, headers: Mapping[str, str], data: Any = None, **_options: Any) -> Any:
        parts = urllib.parse.urlsplit(url)
        query = dict(urllib.parse.parse_qsl(parts.query))
        token = headers["Authorization"].removeprefix("Bearer ")
        status, body = self.api.answer(method, parts.path, query, json.loads(data) if data else {}, token)
        text = io.BytesIO(b"" if body is None else json.dumps(body).encode())
        if status >= 400:
            raise urllib.error.HTTPError(url, status, "refused", {}, text)  # type: ignore[arg-type]
        return _Response(status, text)


class _Lookup(LookupBase):
    """awx.awx.controller_api"""

    def __init__(self, awx: Awx) -> None:
        super().__init__()
        self.api = awx.api

    def run(
        self, terms: list[str], variables: Any = None, *, query_params: Mapping[str, str], **_options: Any
    ) -> list[Any]:
        found: list[Any] = []
        path = f"{PREFIX}{terms[0]}/?{urllib.parse.urlencode(query_params)}"
        while path:
            parts = urllib.parse.urlsplit(path)
            status, page = self.api.answer("GET", parts.path, dict(urllib.parse.parse_qsl(parts.query)), {}, TOKEN)
            assert status == 200, (path, page)
            found += page["results"]
            path = page["next"]
        return found


class _Response:
    def __init__(self, status: int, text: io.BytesIO) -> None:
        self.status, self.read = status, text.read

    @staticmethod
    def getheader(name: str, _default: Any = None) -> str:
        return {"X-API-Product-Name": "AWX", "X-API-Product-Version": "24.6.1"}[name]
