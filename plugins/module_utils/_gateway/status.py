# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the running gateway which configuration it has, and who is connected, over its socket that only root opens. No
engine is asked."""

from __future__ import annotations

import http.client
import re
import socket

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import STATUS_SOCKET

TIMEOUT_S = 2.0
MAX_BYTES = 400
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
