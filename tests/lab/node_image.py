# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The image of a node: a directory tree with Debian trixie, built once per list of packages.

Nodes mount it below an overlay of their own, so there is nothing to import and a node is a few files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from labstate import HERE, LabError, cache_dir, run

SUITE = "trixie"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
REGISTRY = "docker.io/library/debian:trixie"
SOURCES = HERE / "node"
INPUTS = ("packages.txt", "finish.sh")
RECIPE = "1"  # raise it when the steps below change what they make

BUILD = r"""
set -eu
mount -t proc proc "$TREE/proc"
printf '#!/bin/sh\nexit 101\n' > "$TREE/usr/sbin/policy-rc.d"
chmod 755 "$TREE/usr/sbin/policy-rc.d"
echo 'APT::Install-Recommends "false";' > "$TREE/etc/apt/apt.conf.d/90lab"
printf '%s\n' force-unsafe-io 'path-exclude=/usr/share/doc/*' 'path-exclude=/usr/share/man/*' \
  > "$TREE/etc/dpkg/dpkg.cfg.d/lab"
rm -f "$TREE"/etc/apt/sources.list.d/*
echo "deb $MIRROR $SUITE main" > "$TREE/etc/apt/sources.list"
cp /etc/resolv.conf "$TREE/etc/resolv.conf"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
chroot "$TREE" apt-get -q update
chroot "$TREE" apt-get -qy --no-install-recommends install $PACKAGES
chroot "$TREE" apt-get clean
rm -f "$TREE/etc/dpkg/dpkg.cfg.d/lab"
cp "$FINISH" "$TREE/root/finish.sh"
chroot "$TREE" sh /root/finish.sh
rm "$TREE/root/finish.sh"
umount "$TREE/proc"
"""


def fingerprint() -> str:
    digest = hashlib.sha256(RECIPE.encode() + BUILD.encode())
    for name in INPUTS:
        digest.update((SOURCES / name).read_bytes())
    return digest.hexdigest()[:16]


def packages(place: pathlib.Path = SOURCES) -> list[str]:
    lines = (line.strip() for line in (place / "packages.txt").read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def path() -> pathlib.Path:
    return cache_dir() / "images" / fingerprint()


def build() -> pathlib.Path:
    """The tree, made if it is not there. Older images that no lab uses are removed."""
    tree = path()
    tree.parent.mkdir(parents=True, exist_ok=True)
    with (tree.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if tree.exists():
            return tree
        started = time.monotonic()
        for left_over in tree.parent.glob("*.part"):
            remove_tree(left_over)
        part = tree.with_name(tree.name + ".part")
        proxy = apt_proxy()
        environment = {**os.environ, **({"http_proxy": proxy} if proxy else {})}
        _base(part, environment)
        environment |= {
            "TREE": str(part),
            "MIRROR": mirror(),
            "SUITE": SUITE,
            "PACKAGES": " ".join(packages()),
            "FINISH": str(SOURCES / "finish.sh"),
        }
        logged(["unshare", "--mount", "--propagation", "private", "sh", "-c", BUILD], environment)
        part.rename(tree)
        print(f"Node image {tree.name} built in {time.monotonic() - started:.0f} s", flush=True)
        return tree


def logged(command: list[str], environment: dict[str, str]) -> None:
    code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False)
    if code.returncode:
        raise LabError(
            f"Building the node image failed: {command[0]} ended with exit code {code.returncode}; its output is above."
        )


def _base(part: pathlib.Path, environment: dict[str, str]) -> None:
    """A minimal Debian: from a registry where one answers, otherwise by debootstrap."""
    reason = registry_refusal()
    if not reason:
        try:
            _from_registry(part)
        except LabError as exc:
            reason = str(exc)
            remove_tree(part)
        else:
            print(f"Node image: based on {REGISTRY}", flush=True)
            return
    print(f"Node image: debootstrap from {mirror()} (no registry: {reason})", flush=True)
    logged(["debootstrap", "--variant=minbase", SUITE, str(part), mirror()], environment)


def registry_refusal() -> str:
    """Why Docker Hub cannot be used, nothing if it can."""
    try:
        with urllib.request.urlopen("https://registry-1.docker.io/v2/", timeout=4):
            return ""
    except urllib.error.HTTPError as exc:  # 401 is its usual greeting
        return "" if exc.code == 401 else f"it answers {exc.code}"
    except OSError as exc:
        return str(getattr(exc, "reason", exc))


def _from_registry(part: pathlib.Path) -> None:
    part.mkdir()
    storage = part.with_name(part.name + ".storage.part")
    podman = ["podman", "--root", str(storage), "--runroot", f"/run/sparkmatrix-lab/pull-{os.getpid()}"]
    try:
        run([*podman, "pull", "--quiet", REGISTRY])
        name = run([*podman, "create", REGISTRY, "true"]).strip()
        export = subprocess.Popen([*podman, "export", name], stdout=subprocess.PIPE)
        unpack = subprocess.run(["tar", "-x", "-C", str(part)], stdin=export.stdout, check=False)
        if export.wait() or unpack.returncode:
            raise LabError("podman export failed")
    finally:
        run([*podman, "rm", "--all", "--force"], check=False)
        remove_tree(storage)


def remove_tree(tree: pathlib.Path) -> None:
    """rm -rf, refused while anything is mounted below."""
    inside = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted(inside, reverse=True):
        if point.startswith(f"{tree}/"):
            run(["umount", "-l", point])
    if tree.exists():
        shutil.rmtree(tree)


# --- where packages come from ----------------------------------------------------------------------------------------


def mirror() -> str:
    """The Debian mirror in this machine's apt sources, Debian's own where there is none (Ubuntu)."""
    texts = []
    for file in [pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))]:
        if file.suffix in (".list", ".sources") and file.is_file():
            texts.append((file.suffix, file.read_text(errors="replace")))
    return next((uri for suffix, text in texts for uri in debian_uris(suffix, text)), DEFAULT_MIRROR)


def debian_uris(suffix: str, text: str) -> Iterator[str]:
    """URIs of Debian archives (not security, not Ubuntu) in one-line (``.list``) or deb822 (``.sources``) format."""
    if suffix == ".list":
        found = re.findall(r"(?m)^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)", text)
    else:
        found = []
        for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
            fields = {k.lower(): v for k, v in re.findall(r"(?m)^(\S+):((?:.*)(?:\n[ \t]+\S.*)*)", stanza)}
            if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").strip() != "no":
                found += fields.get("uris", "").split()
    for uri in found:
        if re.fullmatch(r"https?://\S+/debian/?", uri):
            yield uri.rstrip("/")


def apt_proxy() -> str:
    shown = run(["apt-config", "shell", "P", "Acquire::http::Proxy"], check=False)
    match = re.search(r"P='([^']+)'", shown)
    return match[1] if match else ""


if __name__ == "__main__":
    print(build(), file=sys.stderr)
