# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Kinds of fields that come from another machine: a type for people and mypy, a parser for :mod:`_base.document`.

What ends up in a file, a command or an address of another machine has a kind; :data:`Words` are for people only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict


def or_empty(parse: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value == "" else parse(value)


Text = Annotated[str, strict.string]
Words = Annotated[str, strict.words]
Word = Annotated[str, strict.word]
Host = Annotated[str, strict.host]
Interface = Annotated[str, strict.interface]
RdmaDevice = Annotated[str, strict.rdma_device]
Address = Annotated[str, strict.address]
Ipv4 = Annotated[str, strict.ipv4]
Destination = Annotated[str, strict.destination]  # of a route
Mac = Annotated[str, strict.mac]
Guid = Annotated[str, strict.guid]
GidText = Annotated[str, strict.gid]
Commit = Annotated[str, strict.commit]
FileMode = Annotated[str, strict.mode]
PublicKey = Annotated[str, strict.public_key]
KnownHosts = Annotated[str, strict.known_hosts]
Flag = Annotated[bool, strict.flag]
Number = Annotated[float, strict.number]
Whole = Annotated[int, strict.whole()]
Count = Annotated[int, strict.whole(0)]
Url = Annotated[str, strict.url]
Port = Annotated[int, strict.whole(1, 65535)]
PrefixLength = Annotated[int, strict.whole(0, 128)]
Octet = Annotated[int, strict.whole(0, 255)]  # of a cage, rail or port of a device
Plain = Annotated[dict[str, Any], strict.plain]  # of another program; who reads it knows what is in it
Diff = list[dict[str, Any]]  # of an answer, as Ansible shows it; nobody decides by it
# The same, or an empty text for nothing.
WordOrEmpty = Annotated[str, or_empty(strict.word)]
CommitOrEmpty = Annotated[str, or_empty(strict.commit)]
HostOrEmpty = Annotated[str, or_empty(strict.host)]
InterfaceOrEmpty = Annotated[str, or_empty(strict.interface)]
AddressOrEmpty = Annotated[str, or_empty(strict.address)]
UrlOrEmpty = Annotated[str, or_empty(strict.url)]
SwitchOrEmpty = Annotated[str, or_empty(strict.switch)]
PublicKeyOrEmpty = Annotated[str, or_empty(strict.public_key)]
