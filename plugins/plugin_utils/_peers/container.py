# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Options of Docker and keys of Compose around a command: which of them are so here anyway, and which are lost."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import digits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import own_command
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import placement, shell
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import (
    Loss,
    Mount,
    PeerRecipe,
    file_text,
    secret,
    shown,
    texts,
)

# How a container is named, shown, kept and looked after, which is the collection's; beside what a rank is not given
# because it has it anyway.
_OURS = frozenset(
    {
        *(
            "detach",
            "rm",
            "name",
            "container_name",
            "hostname",
            "init",
            "label",
            "labels",
            "interactive",
            "tty",
            "gpus",
        ),
        *("stdin_open", "gpu_access_mode", "runtime", "deploy", "pull", "platform", "pull_policy", "publish", "ports"),
        *("expose", "log_driver", "log_opt", "logging", "stop_timeout", "profiles", "stop_grace_period", "stop_signal"),
        *("health_interval", "health_timeout", "health_retries", "health_start_period", "health_cmd", "no_healthcheck"),
        *("healthcheck", "depends_on", "auto_remove", "networks", "annotations", "scale", "attach"),
        *("restart", "network_mode", "ipc", "shm_size", "ulimits"),
    }
)
# As Compose names them.
_NAMES = {
    **{
        "net": "network_mode",
        "network": "network_mode",
        "device": "devices",
        "ulimit": "ulimits",
        "workdir": "working_dir",
    },
    **{"restart_policy": "restart", "memory": "mem_limit", "memory_limit": "mem_limit", "memory_swap": "memswap_limit"},
}
_RANK_HAS = {"cap_add": ("IPC_LOCK",), "devices": ("/dev/infiniband",), "user": ("root", "0", "0:0", "root:root")}
_REASONS = {
    **own_command.NOT_GIVEN,
    "working_dir": "where it runs; relative paths in its command begin there",
    "mem_limit": "a limit of its memory; the plan and the memory watchdog look after that here",
    "extends": "it is made of another service; write out what it takes from there",
}
_CACHES = re.compile(r"/(?:\.cache/|cache/)?huggingface/?|/hf[-_]cache/?|/\.cache/huggingface/hub/?")
_OTHER = "their container has it, and no container of this collection does"
_PATH = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])[^\s/\"']{0,80}(/[A-Za-z0-9/_.-]*)")
MAX_VARIABLES = 2000
MAX_PORTS = 65536


def option(peer: PeerRecipe, given: str, value: Any) -> None:
    """One around the command; ``given`` without dashes."""
    plain = given.replace("-", "_")
    name = _NAMES.get(plain, plain)
    if not value:
        return
    if name in ("healthcheck", "health_cmd"):
        health(peer, value)
    if name in _RANK_HAS:
        has = _RANK_HAS[name]
        others = [
            one for one in texts(value) if one.removeprefix("CAP_").partition(":")[0] not in has and one not in has
        ]
        if not others:
            peer.placed.append(Loss(f"{given} {shown(given, value)}", "a rank has it without it"))
            return
        value = others
    said = given if value is True else f"{given} {shown(given, value)}"
    if name in _OURS:
        peer.placed.append(
            Loss(said, own_command.NOT_GIVEN.get(name, "the collection starts containers in its own way"))
        )
    else:
        peer.lose(said, _REASONS.get(name, _OTHER), "see whether its engine needs it")


def health(peer: PeerRecipe, value: Any) -> None:
    """The path that it asks, as it is known to be ready."""
    found = _PATH.search(json.dumps(value) if not isinstance(value, str) else value)
    if found:
        peer.health = found[1].rstrip("\"'")


def mount(peer: PeerRecipe, text: str) -> None:
    """``source:target[:options]``."""
    parts = re.split(r":(?![-+?=])(?![^{}]{0,400}\})", text)
    source, target = parts[0], parts[1] if len(parts) > 1 else parts[0]
    put_mount(peer, source, target, "ro" in ",".join(parts[2:]).split(","), text)


def put_mount(peer: PeerRecipe, source: str, target: str, read_only: bool, said: str) -> None:
    if not target.startswith("/"):
        peer.lose(f"mount {said}", "where in the container it stands is not said", "add it to mounts")
    elif _CACHES.search(target) and target.rstrip("/").endswith(("huggingface", "cache", "hub")):
        peer.caches.append(target.rstrip("/"))
        peer.placed.append(Loss(f"mount {said}", "the collection brings the models itself"))
    elif not source.startswith("/") or "$" in source:
        kind = (
            "a volume of Docker" if re.fullmatch(r"[A-Za-z0-9][\w.-]*", source) else "the file does not say where it is"
        )
        peer.lose(
            f"mount {said}",
            f"a directory of their machine: {kind}",
            f"put it on every node, and add it to mounts with target {target}",
        )
    elif own_command.forbidden(source):
        peer.lose(
            f"mount {said}",
            "with that directory of the node in it a container can do what root can",
            f"copy what it needs to a directory of yours, and add that to mounts with target {target}",
        )
    else:
        peer.mounts.append(Mount(source, target, read_only))


def published(peer: PeerRecipe, text: str) -> None:
    """``[address:][port:]port[/protocol]``: the one in the container, where the command says none."""
    port = digits(text.partition("/")[0].rpartition(":")[2])
    if port and port < MAX_PORTS:
        peer.port = peer.port or port


def variables_file(peer: PeerRecipe, name: str, base: Path, *, needed: bool = True) -> dict[str, str]:
    """``KEY=VALUE`` lines beside the file, as Docker and Compose read them."""
    place = base / name
    inside = place.resolve().is_relative_to(base.resolve())
    if not name or "$" in name or not inside or not place.is_file():
        if needed:
            peer.lose(f"variables of {name}", "the file is not beside this one", "write what it sets into environment")
        return {}
    return lines(file_text(place))


def lines(text: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for line in text.splitlines()[:MAX_VARIABLES]:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.startswith("#") or not re.fullmatch(r"[A-Za-z_]\w*", name.strip(), re.ASCII):
            continue
        value = value.strip()
        if value[:1] in ("'", '"') and value[0] in value[1:]:
            value = value[1 : value.index(value[0], 1)]
        else:
            value = re.sub(r"(?<!\s)\s+#.*", "", value)
        made[name.strip()] = value
    return made


def put_variable(peer: PeerRecipe, text: str, values: dict[str, str]) -> None:
    """``NAME=value``, or ``NAME`` with what the caller has."""
    name, equals, value = text.partition("=")
    if not equals and name in values:
        value, equals = values[name], "="
    if equals:
        peer.put_environment({name: value})
    elif secret_name(name):
        peer.secret(name)
    else:
        peer.lose(
            f"variable {name}", "it has the value of whoever starts it", "write it into environment if it is needed"
        )


def secret_name(name: str) -> bool:
    """Whatever its value is."""
    return secret(name, "x" * 20)


def put_command(peer: PeerRecipe, argv: list[str]) -> None:
    """Words of the container, or the text that a shell in it gets."""
    if len(argv) > 2 and argv[0].rpartition("/")[2] in ("bash", "sh", "dash") and re.fullmatch(r"-[a-z]*c", argv[1]):
        made = shell.read(argv[2], {})
        found = next((one for one in made.statements if placement.program(one.words)[0]), None)
        peer.script, peer.login = argv[2], "l" in argv[1]
        peer.entrypoint = peer.entrypoint and not peer.login
        peer.argv = found.words if found else made.statements[-1].words if made.statements else []
        # A word that begins an option is no command: a comment has cut it off.
        for one in made.statements:
            if one.words[0].startswith("--"):
                peer.lose(
                    shlex.join(one.words)[:200],
                    "a comment or an end of line before it cuts the command off, so their shell never gives it",
                    "compare with what they mean",
                )
    else:
        peer.argv = argv
