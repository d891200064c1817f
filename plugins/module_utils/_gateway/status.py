# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the running gateway which configuration it has, and who is connected, over its socket that only root opens. No
engine is asked."""

from __future__ import annotations

import http.client
import re
import socket
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import (
    RELAY_SOCKET,
    RELAY_STATUS,
    STATUS_SOCKET,
)

TIMEOUT_S = 2.0
MAX_BYTES = 1000
_STATE = re.compile(r"\b(Reading|Writing|Waiting): ([0-9]{1,9})\b")
_COUNTS = re.compile(r"^ [0-9]{1,18} [0-9]{1,18} ([0-9]{1,18}) ?$", re.MULTILINE)


def configuration(path: str = STATUS_SOCKET) -> str:
    """The hash of the running configuration; empty when none answers."""
    return (_asked(path, "/configuration") or "").strip()


def connections(path: str = STATUS_SOCKET) -> dict[str, int] | None:
    """Requests so far, and connections by state (nginx's stub_status); None when none answers."""
    answer = _asked(path, "/connections")
    if answer is None:
        return None
    found = {state.lower(): int(count) for state, count in _STATE.findall(answer)}
    counts = _COUNTS.search(answer)
    return {**found, "requests": int(counts.group(1))} if counts else found


@dataclass(frozen=True)
class Relayed:
    """What the relay counts. ``configuration``: the mark of the one that it has; ``late``: refused after their wait;
    ``gave_up``: clients that left."""

    configuration: str = ""
    held: int = 0
    held_bytes: int = 0
    held_total: int = 0
    gave_up: int = 0
    late: int = 0
    refused: int = 0
    open: int = 0
    requests: int = 0
    sent_again: int = 0
    broken: int = 0


def relay(path: str = RELAY_SOCKET) -> Relayed | None:
    """None when none answers."""
    try:
        return relayed(_asked(path, RELAY_STATUS) or "")
    except (SparkError, ValueError):
        return None


def relayed(text: str) -> Relayed:
    return document.load_known(Relayed, json_text.mapping(text))


def _asked(path: str, what: str) -> str | None:
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(TIMEOUT_S)
        connection.sock.connect(path)
        connection.request("GET", what)
        return connection.getresponse().read(MAX_BYTES).decode("ascii", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
