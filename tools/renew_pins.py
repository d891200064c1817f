#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Pin the models of recipes to the revision that the hub has today, and images to the digest that their tag has today.

Usage: renew_pins.py [--root DIR] [RECIPE ...]

Recipes are named without ``.yml``; without names all of them, the default images of engines and roles and the base of
the execution environment are renewed. Prints what changed. What cannot be asked stays as it is, is named, also whether
it has a pin at all, and makes the exit code 1. ``HF_ENDPOINT`` and ``HF_TOKEN``
are those of the hub's own tools.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

RECIPES = "roles/engine/files/recipes"
# Where else images are named.
IMAGES = ("plugins/plugin_utils/_engine/kinds/*.py", "roles/*/defaults/main.yml", "execution-environment.yml")
TIMEOUT_S = 30
_MODEL = re.compile(r"^(?P<indent> *)model: (?P<name>[\w.-]+/[\w.-]+)")
_IMAGE = re.compile(
    r'(?P<before>^ *(?:\w*image(?:: | = ")|name: ))(?P<name>[\w./-]+(?::\d+/[\w./-]+)?:[\w.-]+)'
    r"(?:@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
# An index, so that one digest is right for every architecture; plain manifests for images of one.
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
Ask = Callable[[str], str]  # name: revision or digest


class NoAnswerError(Exception):
    """Why something cannot be pinned."""


def revision(model: str) -> str:
    """The commit of a model's main branch."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    _headers, body = _asked("GET", f"{endpoint}/api/models/{model}/revision/main", headers)
    found = json.loads(body).get("sha") or ""
    if not re.fullmatch(r"[0-9a-f]{40}", found):
        raise NoAnswerError(f"the hub names no commit, but {found!r}")
    return found


def digest(image: str) -> str:
    """The digest of an image's tag, as ``docker pull`` would find it."""
    path, _colon, tag = image.rpartition(":")
    host, slash, rest = path.partition("/")
    if not slash or not re.search(r"[.:]|^localhost$", host):
        host, rest = "registry-1.docker.io", path if slash else f"library/{path}"
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    url = f"{scheme}://{host}/v2/{rest}/manifests/{tag}"
    headers = {"Accept": _MANIFESTS}
    try:
        answer, _body = _asked("HEAD", url, headers)
    except urllib.error.HTTPError as exc:
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', exc.headers.get("WWW-Authenticate", "")))
        if exc.code != 401 or "realm" not in challenge:
            raise
        query = urllib.parse.urlencode({key: challenge[key] for key in ("service", "scope") if key in challenge})
        _headers, body = _asked("GET", f"{challenge['realm']}?{query}", {})
        given = json.loads(body)
        headers["Authorization"] = f"Bearer {given.get('token') or given['access_token']}"
        answer, _body = _asked("HEAD", url, headers)
    found = answer.get("docker-content-digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise NoAnswerError(f"the registry names no digest, but {found!r}")
    return found


def _asked(method: str, url: str, headers: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def pinned(text: str, revision_of: Ask, digest_of: Ask) -> str:
    """A file with its pins renewed; nothing else of it changes. An empty answer leaves a pin as it is."""
    lines = text.splitlines(keepends=True)
    for number in reversed(range(len(lines))):
        found = _MODEL.match(lines[number])
        new = revision_of(found["name"]) if found else ""
        if not found or not new:
            continue
        line = f"{found['indent']}revision: {new}\n"
        there = next(_same_block(lines, number, f"{found['indent']}revision:"), None)
        if there is None:
            lines.insert(number + 1, line)
        else:
            lines[there] = line

    def image(match: re.Match[str]) -> str:
        new = digest_of(match["name"])
        return f"{match['before']}{match['name']}@{new}" if new else match[0]

    return _IMAGE.sub(image, "".join(lines))


def unpinned(text: str) -> set[str]:
    """Models without a revision, and images without a digest."""
    lines = text.splitlines(keepends=True)
    models = {
        found["name"]
        for number, line in enumerate(lines)
        if (found := _MODEL.match(line)) and not any(_same_block(lines, number, f"{found['indent']}revision:"))
    }
    return models | {found["name"] for found in _IMAGE.finditer(text) if "@" not in found[0]}


def _same_block(lines: list[str], number: int, begins: str) -> Iterator[int]:
    """Lines of the mapping that this line is in, which begin so."""
    indent = len(lines[number]) - len(lines[number].lstrip())
    for step in (1, -1):
        at = number + step
        while 0 <= at < len(lines) and (not lines[at].strip() or _depth(lines[at]) >= indent):
            if lines[at].startswith(begins):
                yield at
            at += step


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    options = parser.parse_args()
    files = [options.root / RECIPES / f"{name}.yml" for name in options.recipes]
    files = files or sorted(path for glob in (f"{RECIPES}/*.yml", *IMAGES) for path in options.root.glob(glob))
    failed: dict[str, str] = {}
    bare: set[str] = set()

    def careful(ask: Ask) -> Ask:
        @functools.cache
        def answer(name: str) -> str:
            try:
                return ask(name)
            except (OSError, ValueError, KeyError, NoAnswerError) as exc:
                failed[name] = str(exc)
                return ""

        return answer

    revision_of, digest_of = careful(revision), careful(digest)
    for path in files:
        before = path.read_text(encoding="utf-8")
        after = pinned(before, revision_of, digest_of)
        bare |= unpinned(after)
        if after == before:
            continue
        path.write_text(after, encoding="utf-8")
        old = set(before.splitlines())
        print(path.relative_to(options.root))
        print("".join(f"  {line.strip()}\n" for line in after.splitlines() if line not in old), end="")
    for name, why in sorted(failed.items()):
        print(f"{name}: {why}; it stays {'without a pin' if name in bare else 'as it was'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
