# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What no unit of ours needs, in the words of systemd.exec(5).

Not ``ProtectClock``: it implies ``DeviceAllow=char-rtc``, and older systemds then close every other device, the GPU's
and those of verbs among them.
"""

from __future__ import annotations

import os

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths

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
# Beside these, for programs that need no device.
WITHOUT_DEVICES = (
    "PrivateDevices=yes",
    "PrivateMounts=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "UMask=0077",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
)
# Keeper and watchdog are root, because systemd stops units for nobody else. Not ``MemoryDenyWriteExecute``: Python's
# ctypes and Ray make such memory.
ROOT = (
    *ANY,
    "ProtectSystem=strict",
    f"ReadWritePaths=-{paths.STATE}",
    "PrivateTmp=yes",
    *WITHOUT_DEVICES,
)
# Ray's own Python, which may stand in a home, is asked as the service user, whose files are his alone. Ranks are other
# users' processes, too: what they have read, and which sockets they have. ping may need raw packets.
KEEPER = (
    *ROOT,
    "ProtectHome=read-only",
    "ProtectProc=invisible",
    f"RuntimeDirectory={os.path.basename(paths.RUN)}",
    "RuntimeDirectoryPreserve=yes",
    "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_KILL CAP_NET_RAW CAP_SETGID CAP_SETUID"
    " CAP_SYS_PTRACE",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
# It reads /proc and talks to systemd.
WATCHDOG = (
    *ROOT,
    "ProtectHome=yes",
    "PrivateNetwork=yes",
    "IPAddressDeny=any",
    "CapabilityBoundingSet=",
    "RestrictAddressFamilies=AF_UNIX",
)
# It writes one file below /proc/sys, which belongs to root, and has no capability.
DROP_CACHES = (*WATCHDOG, "ProtectKernelTunables=no")
# It removes files of the user that it runs as, below one directory, and asks systemd for a unit.
PREFIXES = (
    *ANY,
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    *WITHOUT_DEVICES,
    "PrivateNetwork=yes",
    "IPAddressDeny=any",
    "CapabilityBoundingSet=",
    "RestrictAddressFamilies=AF_UNIX",
)
# It loads the driver and makes its devices, with the group that the driver names.
GPU_DEVICES = (
    *ANY,
    "ProtectKernelModules=no",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateMounts=yes",
    "PrivateNetwork=yes",
    "ProtectHostname=yes",
    "CapabilityBoundingSet=CAP_CHOWN CAP_MKNOD CAP_SYS_MODULE",
    "RestrictAddressFamilies=AF_UNIX",
    "SystemCallFilter=@system-service @module",
    "SystemCallErrorNumber=EPERM",
)
# It asks the driver for the GPU, and looks at the processes of the ranks and at what only root may read.
METRICS = (
    *ANY,
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "PrivateMounts=yes",
    "ProtectHostname=yes",
    "UMask=0077",
    "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_SYS_PTRACE",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
# Prometheus and node_exporter: an account without rights, and no devices.
SERVER = (
    *ANY,
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    *WITHOUT_DEVICES,
    "CapabilityBoundingSet=",
)
