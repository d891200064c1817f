#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A pylock.toml of uv, from standard input, as a lock for ``pip install --require-hashes``: a line for each package,
with the hashes of its wheels. One without a wheel is refused: building it would run its code as root.
"""

from __future__ import annotations

import sys

import tomllib


def line(package: dict[str, object]) -> str:
    wheels = package.get("wheels")
    if not isinstance(wheels, list) or not wheels:
        raise SystemExit(f"{package['name']} {package.get('version')} has no wheel for this platform")
    hashes = sorted({str(wheel["hashes"]["sha256"]) for wheel in wheels})
    return " ".join([f"{package['name']}=={package['version']}", *(f"--hash=sha256:{one}" for one in hashes)])


if __name__ == "__main__":
    packages = tomllib.loads(sys.stdin.read())["packages"]
    print("\n".join(line(package) for package in sorted(packages, key=lambda one: str(one["name"]))))
