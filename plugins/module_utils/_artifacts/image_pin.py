# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An image that is named by its digest is that one on every node, whoever it came from.

The digest is that of the registry's own index or manifest. Each of its documents names the next one by its hash, down
to the configuration, which names the layers: so the node that gives an image can send the documents along, and whoever
gets it needs no registry to check them. Docker's classic store calls an image by the digest of its configuration,
containerd's by that of an index or a manifest. The classic one keeps no documents: the registry is asked for them once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_source import DIGEST, EACH
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import Image

Ask = Callable[[str], bytes]  # the document of a digest, empty where there is none
Documents = Mapping[str, str]  # their texts, by digest


def pin(name: str) -> str:
    """The digest in the name of an image; empty where it has none."""
    return name.partition("@")[2]


def documents(name: str, ask: Ask, platform: str = "") -> dict[str, str]:
    """What the digest of ``name`` stands for: a manifest; or an index, and those of its manifests that there are.
    ``platform``: only those for this one."""
    top = _text(name, pin(name), ask(pin(name)))
    found = {pin(name): top}
    for entry in json_text.entries(_read(name, top), "manifests"):
        digest, told = str(entry.get("digest")), json_text.entry(entry, "platform")
        if DIGEST.fullmatch(digest) and platform in ("", f"{told.get('os')}/{told.get('architecture')}"):
            data = ask(digest)
            if data:
                found[digest] = _text(name, digest, data)
    return found


def is_pinned(name: str, image: str, known: Documents, ask: Ask) -> bool:
    """Whether what Docker calls ``image`` (its id) is it."""
    configurations = {_configuration(name, text) for text in known.values()} - {""}
    if image in known or image in configurations:
        return True
    # containerd's store, from a classic one: the manifest was made there, for the layers as they lie there.
    data = ask(image)
    return bool(data) and _configuration(name, _text(name, image, data)) in configurations


def from_registry(name: str, image: Image, runner: Runner, options: Sequence[str] = ()) -> dict[str, str]:
    """The documents of an image that this node has. Raises where the registry has another one under this digest."""
    repository = name.partition("@")[0]

    def ask(digest: str) -> bytes:
        done = runner(["docker", *options, "buildx", "imagetools", "inspect", "--raw", f"{repository}@{digest}"])
        if done.rc != 0:
            raise SparkError(
                f"its registry does not say what this digest stands for ({done.complaint}), so other nodes could not"
                " tell whether they get it",
                f"image {name}",
                "See to this node's network, login (engine_image_login) and docker-buildx-plugin; or name a file that"
                f" has it: an OCI archive (engine_image_archive). {EACH}",
            )
        return done.out.encode()

    known = documents(name, ask, image.platform)
    if not is_pinned(name, image.id, known, lambda _digest: b""):
        raise SparkError(
            f"what Docker has by this name is {image.id}, and its registry has another one under this digest",
            f"image {name}",
            "Remove it here, and find out where it came from: docker image rm; then run it again",
        )
    return known


def _text(name: str, digest: str, data: bytes) -> str:
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        found = f"what comes as {digest} is something else" if data else f"nothing says what {digest} stands for"
        raise SparkError(f"{found}, so it cannot be checked, and it was not taken", f"image {name}", EACH)
    with json_text.Reading("its manifest is damaged", f"image {name}", EACH):
        return data.decode()


def _read(name: str, text: str) -> dict[str, Any]:
    return json_text.mapping(text, f"image {name}", EACH)


def _configuration(name: str, text: str) -> str:
    return str(json_text.entry(_read(name, text), "config").get("digest") or "")
