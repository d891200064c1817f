# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From the gateway's settings to its files, by the templates of roles/gateway. No secrets: those are on the node.

nginx, because the distribution keeps it (Ubuntu main), limits rates and sizes without additions, and on a reload lets
the old workers finish their streams. It listens on what was asked for and on one loopback port, which the probes use.
What it lets in goes to the relay (``module_utils/_gateway/relay.py``), which tells several engines apart by the model
in the request, and lets requests wait while an engine is away.
"""

from __future__ import annotations

import ipaddress
import json

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, document, paths, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import GATEWAY, slice_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names, relay_http
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_config import Config, Served
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import (
    BURST,
    SILENCE_S,
    Engine,
    Settings,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import templates

ROLE = "gateway"
PRIVILEGED_PORTS = 1024
MAKES = {"generate": "text", "embed": "embeddings", "rank": "scores"}


def files(settings: Settings, tool: str = "") -> dict[str, str]:
    """``{path on the node: text}``. ``tool``: the hash of the program that the relay is a part of."""
    made = {f"{names.ETC}/nginx.conf": nginx_conf(settings), f"{paths.UNITS}/{names.UNIT}": unit(settings)}
    made[names.RELAY_CONFIG] = relay_config(settings)
    made |= {f"{paths.UNITS}/{name}": relay_unit(name, settings, tool) for name in names.RELAY_UNITS}
    if settings.tls == "files":
        for name in (f"{names.WATCH}.path", f"{names.WATCH}.service"):
            made[f"{paths.UNITS}/{name}"] = _render(f"{name}.j2", settings)
    return made


def nginx_conf(settings: Settings) -> str:
    allowed = sorted({str(ipaddress.ip_network(item, strict=False)) for item in settings.allow_from})
    return _render("nginx.conf.j2", settings, allowed=allowed, error=error, silence_s=SILENCE_S)


def relay_config(settings: Settings) -> str:
    """What the node adds the keys of the engines to."""
    alone = len(settings.engines) == 1
    engines = [
        Served(
            engine.name,
            engine.model,
            engine.host,
            engine.port,
            service="" if alone else engine.name,
            refusals={**({} if engine.named else refusals(settings, engine)), **not_apart(settings, engine)},
            named=bool(engine.named),
            salted=engine.salted,
        )
        for engine in settings.engines
    ]
    bound = tuple(key.name for key in settings.keys if not key.switch)
    made = Config(tuple(engines), settings.max_request_mib, settings.hold, settings.hold_mib, bound=bound)
    return json.dumps(document.plain(made), indent=1) + "\n"


def relay_unit(name: str, settings: Settings, tool: str) -> str:
    """The service has a hash of itself and of its program, which tells what runs."""
    values = {"slice": slice_of(GATEWAY), "sandbox": unit_sandbox.SERVER, "program": paths.NODE_PROGRAM}
    mark = config_hash(_render(f"{name}.j2", settings, mark="", **values), tool)
    return _render(f"{name}.j2", settings, mark=f"{HASH_VARIABLE}={mark}", **values)


def refusals(settings: Settings, engine: Engine) -> dict[str, str]:
    """What to say at the open paths that are not for what ``engine`` does: it would answer 404 without a word.

    Scores may come from every model: vLLM makes them of embeddings, SGLang with a chat model.
    """
    own = ", ".join(path for path in settings.paths if api_paths.TASKS.get(path) == engine.task)
    return {
        path: f"This model makes no {MAKES[task]}. It makes {MAKES[engine.task]}{own and f': use {own}'}."
        for path, task in api_paths.TASKS.items()
        if path in settings.paths and task not in ("rank", engine.task)
    }


def not_apart(settings: Settings, engine: Engine) -> dict[str, str]:
    """Paths at which several clients would share what the engine keeps of prompts."""
    if not engine.salted or len(settings.keys) < 2:
        return {}
    closed = [path for path in api_paths.PROMPTS if path in settings.paths and path not in engine.salted]
    said = "keeps computed prompts, and does not keep clients apart at this path"
    return {path: f"This engine {said}. Use {', '.join(engine.salted)}." for path in closed}


def unit(settings: Settings) -> str:
    """The unit. Its hash is an argument of nginx, whose title keeps it: so the process tells what it was started as."""
    certificate, key = settings.certificate_paths
    capabilities = "CAP_NET_BIND_SERVICE" if settings.port < PRIVILEGED_PORTS else ""
    own = {"certificate": certificate, "certificate_key": key}
    values = {**own, "capabilities": capabilities, "slice": slice_of(GATEWAY)}
    mark = config_hash(_render(f"{names.UNIT}.j2", settings, mark="", **values))
    return _render(f"{names.UNIT}.j2", settings, mark=mark, **values)


def error(message: str, kind: str, code: str, param: str | None = None) -> str:
    """An error of the API, as a quoted word of nginx's configuration."""
    text = relay_http.error(message, kind, code, param)
    if "'" in text or "$" in text or "\\" in text:
        raise ValueError(f"a message that nginx would read differently: {text}")
    return f"'{text}'"


def _render(name: str, settings: Settings, **values: object) -> str:
    return templates.render(ROLE, name, settings=settings, names=names, burst=BURST, **values)
