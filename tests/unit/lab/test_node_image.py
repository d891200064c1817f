# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from node_image import debian_uris, packages

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
UBUNTU = "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu/\nSuites: noble\nComponents: main\n"


A, B = "http://a.example/debian", "https://b.example/debian"


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        (".sources", DEB822, ["http://mirror.example/debian"]),
        (".sources", DEB822.replace("URIs: http", "Enabled: no\nURIs: http"), []),
        (".sources", f"Types: deb-src\nURIs: {A}\n", []),
        (".sources", f"Types: deb\nURIs:\n {A}/\n {B}\n", [A, B]),
        (".sources", UBUNTU, []),
        (".sources", "", []),
        (".list", f"deb {A} bookworm main\n", [A]),
        (".list", f"# deb {A} bookworm main\n", []),
        (".list", f"deb [signed-by=/x arch=amd64] {B}/ bookworm main\n", [B]),
        (".list", f"deb-src {A} bookworm main\n", []),
        (".list", "deb http://security.example/debian-security bookworm-security main\n", []),
    ],
)
def test_debian_uris(suffix: str, text: str, expected: list[str]) -> None:
    assert list(debian_uris(suffix, text)) == expected


def test_packages_have_no_comments() -> None:
    assert "docker.io" in packages()
    assert not [name for name in packages() if name.startswith("#") or " " in name]
