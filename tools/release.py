#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the archive of the collection from the last commit, the same to the byte wherever it is built, and use it as
somebody does who has nothing else: install it, load every playbook by its full name, run one. Beside it a list of what
is in it and what it needs (SBOM, CycloneDX 1.6), and the sums.

    tools/release.py DIRECTORY [--trial]

A release has all its changes in the changelog, and a tag may follow. ``--trial`` builds what is not ready for that.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Container
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv/bin"
# Installed by the user of the collection; what engines on the nodes need is locked in the role.
NEEDED = ("requirements.txt", "roles/*/files/locks/*.txt", "requirements/awx.in")
LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)")
MANIFEST, FILES = "MANIFEST.json", "FILES.json"


def run(*words: str, where: pathlib.Path, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=where, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def state_of(root: pathlib.Path) -> tuple[bool, bool, Container[str]]:
    """Whether files have changed since the last commit, whether fragments wait, and the released versions."""
    changed = bool(run("git", "status", "--porcelain", where=root))
    waiting = any((root / "changelogs/fragments").glob("*.yml"))
    return changed, waiting, yaml.safe_load((root / "changelogs/changelog.yaml").read_text())["releases"]


def not_ready(version: str, changed: bool, waiting: bool, released: Container[str]) -> str:
    """Why this commit is no release; empty where it is one."""
    if changed:
        return "files have changed since the last commit: commit them"
    if waiting and version in released:
        return (
            f"changes wait in changelogs/fragments, and {version} is released: set the next version in galaxy.yml,"
            " then antsibull-changelog release, and commit"
        )
    if waiting:
        return "changes wait in changelogs/fragments: antsibull-changelog release, and commit"
    return "" if version in released else f"galaxy.yml says {version}, and CHANGELOG.md does not know it"


def build(place: pathlib.Path) -> bytes:
    """The archive, from a copy of the last commit."""
    source = place / "source"
    source.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(commit("git", "archive", "HEAD"))) as archive:
        archive.extractall(source, filter="data")
    run(str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(place), where=source)
    (made,) = place.glob("*.tar.gz")
    return settled(made.read_bytes(), int(commit("git", "log", "-1", "--format=%ct")))


def commit(*words: str) -> bytes:
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout


def settled(archive: bytes, time: int) -> bytes:
    """The same archive without what differs from build to build: order, times and owners."""
    content: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as old:
        for member in old:
            stream = old.extractfile(member)
            content[member.name] = (member, stream.read() if stream else b"")
    listed = json.loads(content[FILES][1])
    listed["files"].sort(key=lambda entry: str(entry["name"]))
    _change(content, FILES, listed)
    manifest = json.loads(content[MANIFEST][1])
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(content[FILES][1]).hexdigest()
    _change(content, MANIFEST, manifest)
    made = io.BytesIO()
    # The header of gzip has a time of its own.
    with (
        gzip.GzipFile(fileobj=made, mode="wb", mtime=time, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for name in sorted(content):
            member, text = content[name]
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.size, member.pax_headers = len(text), {}
            new.addfile(member, io.BytesIO(text))
    return made.getvalue()


def _change(content: dict[str, tuple[tarfile.TarInfo, bytes]], name: str, values: Any) -> None:
    content[name] = (content[name][0], (json.dumps(values, indent=1, sort_keys=True) + "\n").encode())


def use(archive: pathlib.Path, place: pathlib.Path) -> int:
    """Install it where nothing else of this project is; the number of playbooks that load."""
    galaxy, playbook = str(BIN / "ansible-galaxy"), str(BIN / "ansible-playbook")
    settings = place / "ansible.cfg"
    settings.write_text("[defaults]\n")
    alone = {"ANSIBLE_COLLECTIONS_PATH": str(place), "ANSIBLE_CONFIG": str(settings), "HOME": str(place)}
    run(galaxy, "collection", "install", "--no-deps", "-p", str(place), str(archive), where=place, **alone)
    installed = place / "ansible_collections/sparkmatrix/cluster"
    hosts = {f"spark{number}": {"spark_rank": number, "ansible_host": f"192.0.2.{number + 1}"} for number in range(2)}
    inventory = place / "hosts.yml"
    inventory.write_text(json.dumps({"all": {"children": {"sparks": {"hosts": hosts}}}}))
    names = sorted(path.stem for path in (installed / "playbooks").glob("*.yml"))
    every = [f"sparkmatrix.cluster.{name}" for name in names]
    run(playbook, "-i", str(inventory), "--list-tasks", *every, where=place, **alone)
    said = run(playbook, "-i", str(inventory), "sparkmatrix.cluster.recipes", where=place, **alone)
    if "gpt-oss-120b" not in said:
        raise SystemExit(f"the installed playbook recipes does not list the recipes:\n{said[-2000:]}")
    return len(names)


def contents(version: str, archive: bytes) -> dict[str, Any]:
    """The bill of materials: the collection, the collections it depends on, and every Python package that it names."""
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    parts = {
        f"pkg:generic/ansible-collection/{name}": {"name": name, "version": wanted}
        for name, wanted in galaxy["dependencies"].items()
    }
    for pattern in NEEDED:
        for path in sorted(ROOT.glob(pattern)):
            for found in filter(None, map(LOCKED.match, path.read_text().splitlines())):
                parts[f"pkg:pypi/{found[1].lower()}@{found[2]}"] = {"name": found[1], "version": found[2]}
    described = {
        "type": "application",
        "bom-ref": "collection",
        "name": "sparkmatrix.cluster",
        "version": version,
        "licenses": [{"license": {"id": galaxy["license"][0]}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(archive).hexdigest()}],
    }
    components = [
        {"type": "library", "bom-ref": ref, **part, **({"purl": ref} if ref.startswith("pkg:pypi") else {})}
        for ref, part in sorted(parts.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": described},
        "components": components,
        "dependencies": [{"ref": "collection", "dependsOn": sorted(parts)}],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--trial", action="store_true", help="also from a commit that is no release")
    options = parser.parse_args(arguments)
    version = str(yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"])
    reason = not_ready(version, *state_of(ROOT))
    if reason and not options.trial:
        raise SystemExit(f"not released: {reason}")
    with tempfile.TemporaryDirectory() as temporary:
        place = pathlib.Path(temporary)
        archive, again = build(place / "one"), build(place / "two")
        if archive != again:
            raise SystemExit("two builds of the same commit differ")
        options.directory.mkdir(parents=True, exist_ok=True)
        path = options.directory / f"sparkmatrix-cluster-{version}.tar.gz"
        path.write_bytes(archive)
        alone = place / "alone"
        alone.mkdir()
        count = use(path.resolve(), alone)
    bill = options.directory / f"{path.name.removesuffix('.tar.gz')}.cdx.json"
    bill.write_text(json.dumps(contents(version, archive), indent=2) + "\n")
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}" for one in (path, bill)]
    (options.directory / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join(sums))
    kind = f"A trial, no release: {reason}" if reason else f"Ready to publish: ansible-galaxy collection publish {path}"
    print(f"{len(archive) / 1e6:.1f} MB, built twice alike; {count} playbooks load from it. {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
