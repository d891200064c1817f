# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What no unit of ours needs, in the words of systemd.exec(5).

Not ``ProtectClock``: it implies ``DeviceAllow=char-rtc``, and older systemds then close every other device, the GPU's
and those of verbs among them.
"""

from __future__ import annotations

ANY = (
    "NoNewPrivileges=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
)
# Beside these: keeper and watchdog, which are root. They start and stop units, the keeper also containers and, as the
# service user, Ray's own Python, which may stand in a home.
ROOT = (*ANY, "ProtectSystem=full", "ProtectHome=read-only")
KEEPER = (*ROOT, "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK")
WATCHDOG = (*ROOT, "RestrictAddressFamilies=AF_UNIX")
