# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From the gateway's settings to its files, by the templates of roles/gateway. No secrets: those are on the node.

nginx, because the distribution keeps it (Ubuntu main), limits rates and sizes without additions, and on a reload lets
the old workers finish their streams. It listens on what was asked for and on one loopback port, which the probes use.
One engine gets every request as it is; several are told apart by the model in the request, which a script reads. That
is njs (``libnginx-mod-http-js``, JavaScript of nginx's own authors) rather than Lua: fewer packages that have to fit
each other, and no code made at run time, so the service keeps ``MemoryDenyWriteExecute``.
"""

from __future__ import annotations

import ipaddress
import json

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import GATEWAY, slice_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import (
    BURST,
    SILENCE_S,
    Engine,
    Settings,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import templates

ROLE = "gateway"
MANAGED = "Managed by sparkmatrix.cluster (role gateway)."
PRIVILEGED_PORTS = 1024
MAKES = {"generate": "text", "embed": "embeddings", "rank": "scores"}


def files(settings: Settings) -> dict[str, str]:
    """``{path on the node: text}``."""
    made = {f"{names.ETC}/nginx.conf": nginx_conf(settings), f"{paths.UNITS}/{names.UNIT}": unit(settings)}
    if settings.routed:
        served = [{"model": engine.model, "refusals": refusals(settings, engine)} for engine in settings.engines]
        made[f"{names.ETC}/models.js"] = f"// {MANAGED}\nexport default {json.dumps(served)};\n"
        made[f"{names.ETC}/route.js"] = templates.text(ROLE, "route.js")
    if settings.tls == "files":
        for name in (f"{names.WATCH}.path", f"{names.WATCH}.service"):
            made[f"{paths.UNITS}/{name}"] = _render(f"{name}.j2", settings)
    return made


def nginx_conf(settings: Settings) -> str:
    reads = {path: "models" if path == api_paths.MODELS else "pick" for path in settings.paths}
    # The script reads what is in memory. Of a request in chunks the lengths of the chunks are there too.
    kept_mib = settings.max_request_mib * (2 if settings.routed else 1)
    allowed = sorted({str(ipaddress.ip_network(item, strict=False)) for item in settings.allow_from})
    values = {"reads": reads, "kept_mib": kept_mib, "allowed": allowed, "MODELS": api_paths.MODELS, "error": error}
    values["silence_s"] = SILENCE_S
    return _render("nginx.conf.j2", settings, refusals=refusals(settings, settings.engines[0]), **values)


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


def unit(settings: Settings) -> str:
    """The unit. Its hash is an argument of nginx, whose title keeps it: so the process tells what it was started as."""
    certificate, key = settings.certificate_paths
    capabilities = "CAP_NET_BIND_SERVICE" if settings.port < PRIVILEGED_PORTS else ""
    own = {"certificate": certificate, "certificate_key": key}
    values = {**own, "capabilities": capabilities, "slice": slice_of(GATEWAY)}
    mark = config_hash(_render(f"{names.UNIT}.j2", settings, mark="", **values))
    return _render(f"{names.UNIT}.j2", settings, mark=mark, **values)


def error(message: str, kind: str, code: str, param: str | None = None) -> str:
    """An error as OpenAI's API has them, as a quoted word of nginx's configuration."""
    text = json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
    if "'" in text or "$" in text or "\\" in text:
        raise ValueError(f"a message that nginx would read differently: {text}")
    return f"'{text}'"


def _render(name: str, settings: Settings, **values: object) -> str:
    return templates.render(ROLE, name, settings=settings, names=names, burst=BURST, **values)
