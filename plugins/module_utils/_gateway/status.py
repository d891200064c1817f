# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the running gateway which configuration it has, over its socket that only root opens. No engine is asked."""

from __future__ import annotations

import http.client
import socket

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import STATUS_SOCKET

TIMEOUT_S = 2.0


def configuration(path: str = STATUS_SOCKET) -> str:
    """The hash of the running configuration; empty when none answers."""
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(TIMEOUT_S)
        connection.sock.connect(path)
        connection.request("GET", "/configuration")
        return connection.getresponse().read(200).decode("ascii", "replace").strip()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
