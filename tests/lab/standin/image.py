#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make the image of the stand-in engine: ``image.py OUTPUT.tar [--lab ID] [--salt TEXT]``.

A Docker archive for ``docker load``, made of the Python of the nodes' own image and the option tables, without Docker
and without a registry. The same input gives the same image id everywhere; ``--salt`` gives another image under the same
name.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
TABLES = HERE.parents[2] / "plugins/plugin_utils/option_tables"
# Image names, from which the plan tells the version, and that version's table.
NAMES = {
    "sparkmatrix.test/vllm-openai:v0.33.0": "vllm-0.33.0",
    "sparkmatrix.test/sglang:v0.5.23": "sglang-0.5.23",
    "sparkmatrix.test/tensorrt-llm:1.4.0": "tensorrt-llm-1.4.0",
}
PROGRAMS = ("vllm", "sglang", "trtllm-serve")
LEFT_OUT = re.compile(r"/(test|__pycache__|idlelib|lib2to3|tkinter|ensurepip|turtledemo)(/|$)")
LIBRARIES = re.compile(r"(ld-linux|lib(c|m|z|dl|rt|util|pthread|expat|ssl|crypto|ffi|bz2|lzma|zstd|uuid))[.-]")


def members(root: pathlib.Path) -> list[pathlib.Path]:
    found = [root / "usr/bin" / name for name in ("python3", "dash", "sh")]
    found += sorted(root.glob("usr/bin/python3.*[0-9]"))
    found += [path for path in sorted(root.glob("usr/lib/python3.*/**/*")) if not LEFT_OUT.search(str(path))]
    for directory in (
        "usr/lib64",
        "usr/lib",
        *(str(path.relative_to(root)) for path in root.glob("usr/lib/*-linux-gnu")),
    ):
        found += [path for path in sorted((root / directory).glob("*")) if LIBRARIES.match(path.name)]
    return [path for path in dict.fromkeys(found) if path.is_symlink() or path.is_file()]


def layer(root: pathlib.Path, salt: str) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes = b"", link: str = "", mode: int = 0o755, directory: bool = False) -> None:
            info = tarfile.TarInfo(name)
            info.mode, info.mtime, info.size = mode, 0, len(data)
            info.type = tarfile.DIRTYPE if directory else tarfile.SYMTYPE if link else tarfile.REGTYPE
            info.linkname = link
            tar.addfile(info, io.BytesIO(data))

        for name in ("bin", "sbin", "lib", "lib64"):
            if (root / name).is_symlink():
                add(name, link=f"usr/{name}")
        for name in ("tmp", "etc", "proc", "sys", "dev", "root", "opt", "opt/standin", "usr", "usr/bin", "usr/sbin"):
            add(name, directory=True)
        for path in members(root):
            name = str(path.relative_to(root))
            if path.is_symlink():
                add(name, link=str(path.readlink()))
            else:
                add(name, path.read_bytes(), mode=path.stat().st_mode & 0o777)
        for table in sorted(NAMES.values()):
            add(f"opt/standin/{table}.json", (TABLES / f"{table}.json").read_bytes(), mode=0o644)
        add("etc/standin-salt", salt.encode(), mode=0o644)
        for program in PROGRAMS:
            add(
                f"usr/bin/{program}",
                (HERE / "standin.py").read_bytes().replace(b"/usr/bin/env python3", b"/usr/bin/python3", 1),
            )
    return output.getvalue()


def archive(root: pathlib.Path, output: pathlib.Path, salt: str) -> str:
    data = layer(root, salt)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
        },
        sort_keys=True,
    ).encode()
    identity = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{identity}.json", "RepoTags": sorted(NAMES), "Layers": ["layer.tar"]}]
    with tarfile.open(output, "w") as tar:
        for name, content in (
            (f"{identity}.json", config),
            ("layer.tar", data),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return f"sha256:{identity}"


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("output", type=pathlib.Path)
    words.add_argument("--lab", default=os.environ.get("SPARKMATRIX_LAB_ID") or "lab", help="whose node image is used")
    words.add_argument("--salt", default="")
    given = words.parse_args()
    sys.path.insert(0, str(HERE.parent))
    from labstate import Lab

    node_image = pathlib.Path(Lab(given.lab).record().image)
    sys.stdout.write(archive(node_image, given.output, given.salt) + "\n")
