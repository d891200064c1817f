# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The images of this node as blobs: straight from Docker's store, or from an archive.

`docker save` would write all of an image before its first byte (100 s and more for 25 GB), and no push is needed. In
containerd's store the blobs are there as the registry gave them. The classic store keeps layers unpacked, with a list
by which each archive can be made again; there is no compressed one any more, so the manifest is one of our own, with
the same configuration and the same layers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_blobs import (
    Blob,
    Offered,
    layer_size,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MOST = 4 << 20  # bytes of a manifest; what registries allow
_SYSTEMS_STORE = "/var/lib/containerd"
EACH = "Or let each node fetch it for itself: engine_image_from_peers: false"
Find = Callable[[str], "Blob | None"]


def from_docker(name: str, image: str, runner: Runner = run, root: str = "/") -> Offered:
    """``image``: its id, as Docker says it."""
    done = runner(["docker", "info", "--format", "{{json .}}"])
    with json_text.Reading("Docker does not say where its images are", "docker info", "Look at: docker info"):
        told = json_text.mapping(done.out)
        place, driver = Path(root, str(told["DockerRootDir"]).lstrip("/")), str(told["Driver"])
        contained = ["driver-type", "io.containerd.snapshotter.v1"] in (told.get("DriverStatus") or [])
    if contained:
        try:
            return _from_containerd(name, image, [place / "containerd/daemon", Path(root, _SYSTEMS_STORE.lstrip("/"))])
        except OSError as exc:
            raise SparkError(f"{place} cannot be read ({exc.strerror})"[:300], f"image {name}", EACH) from exc
    if driver != "overlay2":
        raise SparkError(f"images are not read from Docker's storage driver {driver}", f"image {name}", EACH)
    with json_text.Reading("it cannot be read from Docker's store", f"image {name}", EACH):
        return _from_overlay2(image, place)


def _from_containerd(name: str, image: str, places: Sequence[Path]) -> Offered:
    for place in places:
        content = place / "io.containerd.content.v1.content/blobs/sha256"

        def find(digest: str, content: Path = content) -> Blob | None:
            path = content / digest.partition(":")[2]
            return Blob(path.stat().st_size, path=str(path)) if path.is_file() else None

        if find(image):
            return replace(whole(name, image, find), places=(str(content),))
    raise SparkError(f"{image} is not in containerd's store", f"image {name}", EACH)


def _from_overlay2(image: str, place: Path) -> Offered:
    metadata = place / "image/overlay2"
    configuration = metadata / "imagedb/content/sha256" / _hexadecimal(image)
    told = json_text.mapping(configuration.read_bytes())
    blobs = {image: Blob(configuration.stat().st_size, path=str(configuration))}
    layers, chain = [], ""
    for digest in told["rootfs"]["diff_ids"]:
        chain = f"sha256:{hashlib.sha256(f'{chain} {digest}'.encode()).hexdigest()}" if chain else digest
        known = metadata / "layerdb/sha256" / _hexadecimal(chain)
        listed = str(known / "tar-split.json.gz")
        cached = (known / "cache-id").read_text(encoding="ascii")
        if not re.fullmatch(r"\w+", cached, re.ASCII):
            raise ValueError(f"{ascii(cached)[:80]} is no name of a layer")
        tree = place / "overlay2" / cached / "diff"
        blobs[digest] = Blob(layer_size(listed), path=listed, tree=str(tree))
        layers.append({"mediaType": LAYER, "digest": digest, "size": blobs[digest].size})
    described = {"mediaType": CONFIG, "digest": image, "size": blobs[image].size}
    made = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers}
    text = json.dumps(made, sort_keys=True)
    root = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    places = (str(metadata), str(place / "overlay2"))
    return Offered(root, {**blobs, root: Blob(len(text), text=text, media=MANIFEST)}, places)


def from_archive(name: str, path: str) -> Offered | None:
    """``name`` from an OCI layout in a tar file, which is read where it lies. None where it is another kind of file,
    such as a compressed one: Docker may know it."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = {one.name: one for one in archive if one.type in (tarfile.REGTYPE, tarfile.AREGTYPE)}
    except tarfile.TarError:
        return None
    except OSError as exc:
        raise SparkError(f"cannot be read ({exc.strerror})", path, "Check engine_image_archive") from exc

    def find(digest: str) -> Blob | None:
        member = members.get(f"blobs/sha256/{_hexadecimal(digest)}")
        return Blob(member.size, path=path, offset=member.offset_data) if member else None

    if "index.json" not in members:
        return None
    index = members["index.json"]
    told = _document(Blob(index.size, path=path, offset=index.offset_data), path)
    return replace(whole(name, _named(name, told.get("manifests") or [], path), find), places=(path,))


def _named(name: str, entries: Sequence[Mapping[str, Any]], path: str) -> str:
    """The one entry, or that with the name or the digest."""
    digest = name.partition("@")[2]
    names = {
        str(entry.get("digest")): str((entry.get("annotations") or {}).get("io.containerd.image.name") or "")
        for entry in entries
    }
    fits = [one for one, told in names.items() if digest == one or (not digest and told in _spellings(name))]
    found = fits or (list(names) if len(names) == 1 and not digest else [])
    if len(found) != 1 or not DIGEST.fullmatch(found[0]):
        there = ", ".join(f"{told or 'an image without a name'} {one}" for one, told in names.items()) or "no image"
        raise SparkError(f"has {there}", path, f"Name an archive that has {name}")
    return found[0]


def _spellings(name: str) -> tuple[str, ...]:
    """Docker leaves out what is its own."""
    first, slash, _rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return (name,)
    return (name, f"docker.io/{name}", f"docker.io/library/{name}")


def whole(name: str, root: str, find: Find) -> Offered:
    """All that belongs to a manifest, or of an index to those of its manifests that are here."""
    blobs: dict[str, Blob] = {}
    top = _manifest(root, find, name)
    documents = [(root, top)]
    for entry in top.get("manifests") or []:
        digest = str(entry.get("digest"))
        if DIGEST.fullmatch(digest) and find(digest):
            documents.append((digest, _manifest(digest, find, name)))
    complete = False
    for digest, told in documents:
        kind = INDEX if "manifests" in told else MANIFEST
        wanted = [str(one.get("digest")) for one in [told.get("config") or {}, *(told.get("layers") or [])] if one]
        found = {one: blob for one in wanted if DIGEST.fullmatch(one) for blob in [find(one)] if blob}
        manifest = find(digest)
        if manifest and len(found) == len(set(wanted)):
            blobs.update(found)
            blobs[digest] = Blob(
                manifest.size, "", manifest.path, manifest.offset, "", str(told.get("mediaType") or kind)
            )
            complete = complete or bool(wanted)
    if not complete:
        raise SparkError("parts of it are not here", f"image {name}", f"Fetch it again: docker pull {name}. {EACH}")
    return Offered(root, blobs)


def _manifest(digest: str, find: Find, name: str) -> Mapping[str, Any]:
    blob = find(digest)
    if blob is None:
        raise SparkError(f"its manifest {digest} is not here", f"image {name}", EACH)
    return _document(blob, f"image {name}")


def _document(blob: Blob, where: str) -> Mapping[str, Any]:
    with json_text.Reading("its manifest is damaged", where, EACH):
        if blob.size > MOST:
            raise ValueError(f"it has {blob.size} bytes")
        with open(blob.path, "rb") as stream:
            told = json_text.mapping(os.pread(stream.fileno(), blob.size, blob.offset))
        for one in [told.get("config") or {}, *(told.get("layers") or []), *(told.get("manifests") or [])]:
            if not isinstance(one, dict) or not isinstance(one.get("annotations") or {}, dict):
                raise TypeError("an entry is no mapping")
        return told


def _hexadecimal(digest: str) -> str:
    """As a name of a file."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{ascii(digest)[:80]} is no digest")
    return digest.partition(":")[2]
