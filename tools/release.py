#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Build the archive of the collection from the last commit, the same to the byte wherever it is built, and use it as
somebody does who has nothing else. With each Python of the tests a new environment gets what the guide tells users to
install; the archive is installed there, with its dependencies out of the package ``ansible`` and nowhere else; every
playbook is loaded by its full name, and one plans a cluster. Beside the archive a list of what is in it and what it
needs (SBOM, CycloneDX 1.6), and the sums. The wheel of the command goes the same way.

    tools/release.py DIRECTORY [--trial]

A release has all its changes in the changelog, and a tag may follow. ``--trial`` builds what is not ready for that.
"""

from __future__ import annotations

import argparse
import datetime
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
from collections.abc import Container, Mapping
from typing import Any

import yaml
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv/bin"
PYTHONS = (".venv", ".venv-py312")  # with the oldest Python pip takes the oldest ansible of the guide's range
GUIDE = "docs/start/with-ansible.md"
INSTALLED = re.compile(r"pip install '(ansible\b[^']+)' -r requirements\.txt")
# What of the guide's first example has to come out.
INVENTORY, RECIPE = "inventories/2spark", "qwen3.8-flash-next-nvfp4"
PLANNED = ("Fits: ", "Endpoint: http://127.0.0.1:8000/v1 on spark1")
EPOCH = "1577836800"  # of the files in a wheel, which is one for each commit anyway
LOCKS = "roles/*/files/locks/*.txt"  # what is installed on nodes
LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)")
MANIFEST, FILES = "MANIFEST.json", "FILES.json"


def run(*words: str, where: pathlib.Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, check=False)
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


def build(commit: str, source: pathlib.Path) -> bytes:
    """The archive, from a copy of the commit, which stays there."""
    place = source.parent
    source.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(source, filter="data")
    run(str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(place), where=source)
    (made,) = place.glob("*.tar.gz")
    return settled(made.read_bytes(), time_of(commit))


def wheel(source: pathlib.Path) -> bytes:
    """The command with the collection in it, from a copy of the commit. The two others are those of ``.venv``."""
    words = (str(BIN / "python"), "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir")
    settled_times = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    run(*words, str(source.parent), str(source / "cli"), where=source, environment=settled_times)
    (made,) = source.parent.glob("*.whl")
    return made.read_bytes()


def time_of(commit: str) -> int:
    return int(git("log", "-1", "--format=%ct", commit))


def git(*words: str) -> bytes:
    return subprocess.run(("git", *words), cwd=ROOT, capture_output=True, check=True).stdout


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


def use(archive: pathlib.Path, source: pathlib.Path, python: pathlib.Path, place: pathlib.Path) -> str:
    """Install it where nothing else is, and use it; says with what, and how many playbooks load."""
    made, empty = place / "environment", place / "empty"
    empty.mkdir()
    run(str(python), "-m", "venv", str(made), where=empty)
    pip = (str(made / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, asked_for(source), "--requirement", str(source / "requirements.txt"), where=empty)
    # Nothing of the user's or of the tests' settings, and Ansible's own places for collections.
    alone = {"HOME": str(place), "PATH": f"{made / 'bin'}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    galaxy, playbook = str(made / "bin/ansible-galaxy"), str(made / "bin/ansible-playbook")
    # Offline: a dependency that the package ansible does not have in a version that galaxy.yml wants is an error.
    run(galaxy, "collection", "install", "--offline", str(archive), where=empty, environment=alone)
    run(galaxy, "collection", "verify", "--offline", "sparkmatrix.cluster", where=empty, environment=alone)
    installed = place / ".ansible/collections/ansible_collections/sparkmatrix/cluster"
    inventory = str(installed / INVENTORY)
    every = [f"sparkmatrix.cluster.{path.stem}" for path in sorted((installed / "playbooks").glob("*.yml"))]
    run(playbook, "-i", inventory, "--list-tasks", *every, where=empty, environment=alone)
    words = ("sparkmatrix.cluster.plan", "-i", inventory, "-e", f"engine_recipe={RECIPE}")
    said = run(playbook, *words, where=empty, environment=alone)
    if missing := [text for text in PLANNED if text not in said]:
        raise SystemExit(f"the installed playbook plan does not say {missing}:\n{said[-4000:]}")
    program = "import importlib.metadata as m, sys; print('%d.%d' % sys.version_info[:2], m.version('ansible'))"
    version, ansible = run(str(made / "bin/python"), "-c", program, where=empty).split()
    return f"{len(every)} playbooks load and one plans with ansible {ansible} on Python {version}"


def use_command(made: pathlib.Path, python: pathlib.Path, place: pathlib.Path) -> str:
    """The wheel alone, as pipx and uvx install it, with what the index has today; says how large all of it is."""
    environment, empty = place / "command", place / "nothing"
    empty.mkdir()
    run(str(python), "-m", "venv", "--without-pip", str(environment), where=empty)
    target = str(environment / "bin/python")
    run(str(python), "-m", "pip", "--python", target, "install", "--quiet", "--no-compile", str(made), where=empty)
    alone = {"HOME": str(place), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    said = run(str(environment / "bin/sparkmatrix"), "plan", RECIPE, where=empty, environment=alone)
    if missing := [text for text in PLANNED if text not in said]:
        raise SystemExit(f"sparkmatrix plan does not say {missing}:\n{said[-4000:]}")
    size = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file())
    return f"the command plans too, {len(made.read_bytes()) / 1e6:.1f} MB, installed {size / 1e6:.0f} MB"


def asked_for(source: pathlib.Path) -> str:
    """The range of the package ansible that the guide tells users to install."""
    found = INSTALLED.search((source / GUIDE).read_text())
    if not found:
        raise SystemExit(f"{GUIDE} does not say which ansible to install")
    return found[1]


def contents(source: pathlib.Path, archive: bytes, time: int) -> dict[str, Any]:
    """The bill of materials: the collection, what the controller needs, in a range, and what is installed on nodes, in
    the versions of the locks."""
    galaxy = yaml.safe_load((source / "galaxy.yml").read_text())
    parts = {f"ansible-collection/{name}": _ranged(name, wanted) for name, wanted in galaxy["dependencies"].items()}
    for line in (source / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            asked = Requirement(line)
            parts[f"pkg:pypi/{asked.name.lower()}"] = _ranged(asked.name, str(asked.specifier))
    for path in sorted(source.glob(LOCKS)):
        for found in filter(None, map(LOCKED.match, path.read_text().splitlines())):
            parts[f"pkg:pypi/{found[1].lower()}@{found[2]}"] = {"name": found[1], "version": found[2]}
    described = {
        "type": "application",
        "bom-ref": "collection",
        "name": "sparkmatrix.cluster",
        "version": str(galaxy["version"]),
        "licenses": [{"license": {"id": galaxy["license"][0]}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(archive).hexdigest()}],
    }
    components = [
        {"type": "library", "bom-ref": ref, **part, **({"purl": ref} if ref.startswith("pkg:") else {})}
        for ref, part in sorted(parts.items())
    ]
    made = datetime.datetime.fromtimestamp(time, datetime.timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": made, "component": described},
        "components": components,
        "dependencies": [{"ref": "collection", "dependsOn": sorted(parts)}],
    }


def _ranged(name: str, wanted: str) -> dict[str, Any]:
    # The field `version` is for one version.
    return {"name": name, "properties": [{"name": "sparkmatrix:required", "value": wanted}]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--trial", action="store_true", help="also from a commit that is no release")
    options = parser.parse_args(arguments)
    version = str(yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"])
    reason = not_ready(version, *state_of(ROOT))
    if reason and not options.trial:
        raise SystemExit(f"not released: {reason}")
    commit = git("rev-parse", "HEAD").decode().strip()  # somebody may commit meanwhile
    with tempfile.TemporaryDirectory() as temporary:
        place = pathlib.Path(temporary)
        source = place / "one/source"
        archive, again = build(commit, source), build(commit, place / "two/source")
        command, another = wheel(source), wheel(place / "two/source")
        if (archive, command) != (again, another):
            raise SystemExit("two builds of the same commit differ")
        options.directory.mkdir(parents=True, exist_ok=True)
        version = str(yaml.safe_load((source / "galaxy.yml").read_text())["version"])
        path = options.directory / f"sparkmatrix-cluster-{version}.tar.gz"
        path.write_bytes(archive)
        made = options.directory / f"sparkmatrix-{version}-py3-none-any.whl"
        made.write_bytes(command)
        said = []
        for name in PYTHONS:
            if (ROOT / name / "bin/python").exists() and not (ROOT / name).is_symlink():
                with tempfile.TemporaryDirectory(dir=place) as alone:  # half a gigabyte, so one after the other
                    python = ROOT / name / "bin/python"
                    said.append(use(path.resolve(), source, python, pathlib.Path(alone)))
                    said.append(use_command(made.resolve(), python, pathlib.Path(alone)))
        bill = options.directory / f"{path.name.removesuffix('.tar.gz')}.cdx.json"
        bill.write_text(json.dumps(contents(source, archive, time_of(commit)), indent=2) + "\n")
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}" for one in (path, made, bill)]
    (options.directory / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join(sums))
    kind = (
        f"A trial, no release: {reason}"
        if reason
        else f"Ready to publish: ansible-galaxy collection publish {path}; twine upload {made}"
    )
    print(f"{len(archive) / 1e6:.2f} MB, built twice alike. {'; '.join(said)}. {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
