# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From the settings of the chat page (Open WebUI) to its unit and its environment on the head.

Names of variables are those of release 0.12.4 (``open_webui/env.py``, ``open_webui/config.py``). No secrets: the unit
reads them from files when it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import local_name
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import WEB_UI, slice_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.keys import path as key_path
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import SILENCE_S
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import names
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import templates
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall.port_filter import layer

ROLE = "web_ui"
MANAGED = "Managed by sparkmatrix.cluster (role web_ui)."
LOOPBACK = "127.0.0.1"
ENVIRONMENT = f"{paths.ETC}/web-ui.env"
RUN = "/run/sparkmatrix-web-ui"
IN_CONTAINER = "/data"  # where the data are there
VENV = "/opt/sparkmatrix/web-ui"
MEMORY_MIB = 4096  # of the GPU, too
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?")
_RELEASE = re.compile(r":v?[0-9]+(\.[0-9]+){1,3}(@|$)")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
# What keeps the page to itself: set by nobody else, whatever the inventory says.
_OURS = frozenset(
    {"DATA_DIR", "STATIC_DIR", "DATABASE_URL", "HOME", "HOST", "PORT", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"}
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


@dataclass(frozen=True)
class Settings:
    runtime: str = "container"
    image: str = ""
    port: int = ports.WEB_UI
    signup: str = "pending"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gateway:
    """As the page reaches it: on loopback, where it needs no TLS."""

    port: int


@dataclass(frozen=True)
class Made:
    files: Mapping[str, str]
    hash: str
    ask: str  # a page that answers when it is up
    filter: str  # rules by which nobody else answers at its port


def check(settings: Settings) -> Iterator[Finding]:
    """All that is wrong with the settings, known without any machine."""
    if not 1024 <= settings.port <= 65535:
        yield _wrong(f"web_ui_port is {settings.port}", "Set it to 1024 to 65535")
    if settings.runtime == "container" and not _IMAGE.fullmatch(settings.image):
        yield _wrong(
            f"web_ui_image {settings.image!r:.200} is no image",
            "Write it as name@sha256:… or name:tag, or set web_ui_runtime: venv",
        )
    if settings.runtime == "venv" and not _RELEASE.search(settings.image):
        yield _wrong(
            f"web_ui_image {settings.image!r:.200} has no release in its tag, which the package is installed of",
            "Write it as name:v0.12.4",
        )
    for name, value in settings.environment.items():
        if not _NAME.fullmatch(name) or name in _OURS or name in _fixed(settings, Gateway(1)):
            yield _wrong(
                f"web_ui_environment has {name!r:.100}", "Leave it out: it is no variable, or the role itself sets it"
            )
        elif _SECRET.search(name) or looks_secret(name, str(value)):
            yield _wrong(f"web_ui_environment has {name}", "Leave secrets out: its file may be read by every account")
        elif any(character in str(value) for character in "\n\r\0\"'\\"):
            yield _wrong(
                f"web_ui_environment has a value of {name} with quotes or lines", "Write it on one line without them"
            )


def _wrong(found: str, remedy: str) -> Finding:
    return Finding("", found, remedy)


def _fixed(settings: Settings, gateway: Gateway) -> dict[str, str]:
    """Who may come in, whom it asks, and that it asks nobody else."""
    return {
        "WEBUI_AUTH": "True",
        "ENABLE_PERSISTENT_CONFIG": "False",  # or keys and addresses of the first start would stay for ever
        "ENABLE_SIGNUP": str(settings.signup != "closed"),
        "DEFAULT_USER_ROLE": "user" if settings.signup == "user" else "pending",
        "ENABLE_OPENAI_API": "True",
        "OPENAI_API_BASE_URLS": f"http://{LOOPBACK}:{gateway.port}/v1",
        "ENABLE_OLLAMA_API": "False",
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_VERSION_UPDATE_CHECK": "False",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "True",
        "SCARF_NO_ANALYTICS": "True",
        "ENABLE_COMMUNITY_SHARING": "False",
        "ENABLE_OTEL": "False",
        "ENABLE_PIP_INSTALL_FRONTMATTER_REQUIREMENTS": "False",
    }


def environment(settings: Settings, gateway: Gateway) -> dict[str, str]:
    """The user's own come last, but for those that are fixed."""
    usual = {
        "ENV": "prod",
        "AIOHTTP_CLIENT_TIMEOUT": str(SILENCE_S),
        "CORS_ALLOW_ORIGIN": f"http://{LOOPBACK}:{settings.port};http://localhost:{settings.port}",
        # Whoever has an account may ask every model of the gateway.
        "BYPASS_MODEL_ACCESS_CONTROL": "True",
        # Files go into the prompt as they are: no model for them is fetched, or held in memory.
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
        "RAG_EMBEDDING_ENGINE": "openai",
        # Else tools of its own go along with every question, and an engine without a parser of calls refuses those.
        "DEFAULT_MODEL_PARAMS": '{"function_calling":"legacy"}',
        # An administrator of the page would run programs on the head.
        "ENABLE_PLUGINS": "False",
        "ENABLE_WEB_SEARCH": "False",
    }
    return {**usual, **{name: str(value) for name, value in settings.environment.items()}, **_fixed(settings, gateway)}


def make(settings: Settings, gateway: Gateway, marks: str, image: str = "") -> Made:
    """``marks``: what changes with keys and release, so that the page starts anew with them. ``image``: its id, where
    the head has it."""
    where = {"container": (IN_CONTAINER, "/tmp/static"), "venv": (paths.WEB_UI, f"{RUN}/static")}  # noqa: S108 - its own
    data, static = where[settings.runtime]
    lines = {**environment(settings, gateway), "DATA_DIR": data, "STATIC_DIR": static}
    text = f"# {MANAGED}\n" + "".join(f"{name}={value}\n" for name, value in sorted(lines.items()))
    unit = f"{settings.runtime}.service.j2"
    values = {
        "settings": settings,
        "data": paths.WEB_UI,
        "venv": VENV,
        "memory_mib": MEMORY_MIB,
        "names": names,
        "managed": MANAGED,
        "sandbox": unit_sandbox,
        "slice": slice_of(WEB_UI),
        "environment": ENVIRONMENT,
        "run": RUN,
        "address": LOOPBACK,
        "gateway_key": key_path(names.CLIENT),
        "own_key": paths.WEB_UI_KEY,
        "image": image or local_name(settings.image),
        "inside": IN_CONTAINER,
    }
    mark = config_hash(templates.render(ROLE, unit, **values, hash=""), text, marks)
    files = {ENVIRONMENT: text, f"{paths.UNITS}/{names.UNIT}": templates.render(ROLE, unit, **values, hash=mark)}
    return Made(files, mark, f"http://{LOOPBACK}:{settings.port}/health", layer(WEB_UI, [(LOOPBACK, settings.port)]))
