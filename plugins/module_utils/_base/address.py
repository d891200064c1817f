# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""IP addresses as text."""

from __future__ import annotations

import ipaddress


def canonical(text: object) -> str:
    """One spelling per address: no zone, no IPv4 in IPv6 (::ffff:10.0.0.1); empty where it is no address."""
    try:
        address = ipaddress.ip_address(str(text))
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address).partition("%")[0]


def ipv4(value: object) -> str:
    """The address in its one spelling; empty where it is not IPv4."""
    found = canonical(value)
    return "" if ":" in found else found


def is_address(text: str) -> bool:
    return bool(canonical(text))
