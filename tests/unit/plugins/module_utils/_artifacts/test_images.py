# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Container images on their way between nodes: real bytes over real connections, Docker itself is a stand-in."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import random
import socket
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    image_blobs,
    image_copy,
    image_pin,
    image_server,
    image_source,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

NAME = "nvcr.io/nvidia/vllm:26.10-py3"
TOKEN = "a" * 48


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def archive(files):
    """A layer, with what tar and Docker know: long names, names that are no UTF-8, a hard link, a whiteout."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("opt/hard")
        link.type, link.linkname = tarfile.LNKTYPE, next(iter(files))
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("opt/.wh.gone"))
    return made.getvalue()


def unpacked(layer, place, tree):
    """What Docker's classic store has of a layer."""
    entries, at = [], 0
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        for member in tar:
            if member.isreg() and member.size:
                path = os.path.join(os.fsencode(tree), os.fsencode(member.name))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                data = layer[member.offset_data : member.offset_data + member.size]
                with open(path, "wb") as stream:
                    stream.write(data)
                raw = os.fsencode(member.name)
                name = {"name_raw": base64.b64encode(raw).decode()} if b"\xff" in raw else {"name": raw.decode()}
                entries.append({"type": 2, "payload": base64.b64encode(layer[at : member.offset_data]).decode()})
                entries.append({"type": 1, **name, "size": member.size, "payload": "AAAAAAAAAAA="})
                at = member.offset_data + member.size
            else:
                entries.append({"type": 1, "name": "x", "payload": None})
    entries.append({"type": 2, "payload": base64.b64encode(layer[at:]).decode()})
    place.mkdir(parents=True)
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (place / "tar-split.json.gz").write_bytes(gzip.compress(lines.encode()))


LAYERS = [
    archive(
        {
            f"opt/{'long/' * 40}{seed}": random.Random(seed).randbytes(300_000),
            "opt/name-\udcff": b"one",
            "opt/empty": b"",
            f"opt/small{seed}": b"x" * 70_000,
        }
    )
    for seed in (1, 2)
]
CONFIG = json.dumps({"architecture": "arm64", "rootfs": {"diff_ids": [digest(one) for one in LAYERS]}}).encode()
INFO = {"DockerRootDir": "/var/lib/docker", "Driver": "overlay2", "DriverStatus": [["Supports d_type", "true"]]}
CONTAINERD = {**INFO, "Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}


def told(info):
    return lambda argv: Completed(0, json.dumps(info))


def overlay2(root):
    docker = root / "var/lib/docker"
    content = docker / "image/overlay2/imagedb/content/sha256"
    content.mkdir(parents=True)
    (content / digest(CONFIG)[7:]).write_bytes(CONFIG)
    chain = ""
    for number, layer in enumerate(LAYERS):
        chain = digest(f"{chain} {digest(layer)}".encode()) if chain else digest(layer)
        place = docker / "image/overlay2/layerdb/sha256" / chain[7:]
        unpacked(layer, place, docker / "overlay2" / f"cache{number}/diff")
        (place / "cache-id").write_text(f"cache{number}")
    return image_source.from_docker(NAME, digest(CONFIG), told(INFO), str(root))


def described(data, media):
    return {"mediaType": media, "digest": digest(data), "size": len(data)}


PACKED = [gzip.compress(one, 1, mtime=0) for one in LAYERS]
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "config": described(CONFIG, image_source.CONFIG),
        "layers": [described(one, image_source.LAYER + "+gzip") for one in PACKED],
    }
).encode()
ELSEWHERE = digest(b"for another platform")
INDEX = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json",
        "manifests": [described(MANIFEST, image_source.MANIFEST), {"digest": ELSEWHERE}],
    }
).encode()
PINNED = f"nvcr.io/nvidia/vllm@{digest(INDEX)}"
BLOBS = {digest(one): one for one in (*PACKED, CONFIG, MANIFEST, INDEX)}


def containerd(root, place="var/lib/containerd", without=""):
    content = root / place / "io.containerd.content.v1.content/blobs/sha256"
    content.mkdir(parents=True)
    for name, data in BLOBS.items():
        if name != without:
            (content / name[7:]).write_bytes(data)
    return image_source.from_docker(NAME, digest(INDEX), told(CONTAINERD), str(root))


def layout(path, entries, files=(), mode="w"):
    with tarfile.open(path, mode) as tar:
        members = {f"blobs/sha256/{name[7:]}": data for name, data in BLOBS.items()}
        members["index.json"] = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
        for name, data in {**members, **dict(files)}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def oci(root):
    found = image_source.from_archive(NAME, layout(root / "a.tar", [{"digest": digest(INDEX)}]))
    assert found is not None
    return found


def sent(blob, start=0):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        process = os.fork()
        if not process:
            try:
                image_blobs.send(ours, blob, start)
            finally:
                os._exit(0)
        ours.close()
        got = bytearray()
        while data := theirs.recv(1 << 16):
            got += data
        os.waitpid(process, 0)
        return bytes(got)


@pytest.mark.parametrize("store", [overlay2, containerd, oci])
def test_every_blob_is_the_one_of_its_digest(tmp_path, store):
    offered = store(tmp_path)
    assert offered.root in offered.blobs
    assert len(offered.blobs) == (4 if store is overlay2 else 5)
    for name, blob in offered.blobs.items():
        data = sent(blob)
        assert (digest(data), len(data)) == (name, blob.size)
        for start in (1, len(data) // 3, len(data) // 2, len(data) - 1):
            assert sent(blob, start) == data[start:]
    media = {blob.media for blob in offered.blobs.values() if blob.media}
    expected = {image_source.MANIFEST}
    assert media == (expected if store is overlay2 else {*expected, json.loads(INDEX)["mediaType"]})


def test_containerd_of_docker_itself(tmp_path):
    assert containerd(tmp_path, "var/lib/docker/containerd/daemon").root == digest(INDEX)


def test_what_is_not_whole_is_not_offered(tmp_path):
    with pytest.raises(SparkError, match=r"parts of it are not here.*docker pull"):
        containerd(tmp_path, without=digest(PACKED[1]))


def test_a_store_that_nobody_knows(tmp_path):
    with pytest.raises(SparkError, match=r"storage driver zfs.*engine_image_from_peers"):
        image_source.from_docker(NAME, digest(CONFIG), told({**INFO, "Driver": "zfs"}), str(tmp_path))
    with pytest.raises(SparkError, match=r"cannot be read from Docker's store"):
        image_source.from_docker(NAME, digest(CONFIG), told(INFO), str(tmp_path))
    with pytest.raises(SparkError, match=r"is not in containerd's store"):
        image_source.from_docker(NAME, digest(CONFIG), told(CONTAINERD), str(tmp_path))
    with pytest.raises(SparkError, match=r"Docker does not say"):
        image_source.from_docker(NAME, digest(CONFIG), lambda argv: Completed(1, "", "gone"), str(tmp_path))


def test_a_file_that_was_changed_ends_the_connection(tmp_path):
    offered = overlay2(tmp_path)
    layer = offered.blobs[digest(LAYERS[0])]
    small = next(
        path for path in (tmp_path / "var/lib/docker/overlay2/cache0/diff/opt").iterdir() if "small" in path.name
    )
    small.write_bytes(b"short")
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(OSError, match=r"bytes less"):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        image_blobs.send(ours, layer)


SECRET = b"of another program on this node"


def planted(root, name, put):
    """A layer whose list names a file, and what its maker has put there instead."""
    outside = root / "outside"
    outside.mkdir()
    (outside / "key").write_bytes(SECRET)
    tree = root / "store/overlay2/1/diff"
    tree.mkdir(parents=True)
    put(tree, outside)
    listed = root / "tar-split.json.gz"
    entry = {"type": 1, "name_raw": base64.b64encode(name).decode(), "size": len(SECRET)}
    listed.write_bytes(gzip.compress(json.dumps(entry).encode()))
    return image_blobs.Blob(len(SECRET), path=str(listed), tree=str(tree))


def linked(part):
    def put(tree, outside):
        way = tree.joinpath(*part)
        way.parent.mkdir(parents=True, exist_ok=True)
        way.symlink_to(outside)

    return put


@pytest.mark.parametrize(
    ("name", "put"),
    [
        (b"x/key", linked("x")),
        (b"a/x/key", linked("ax")),
        (b"a/b/x/key", linked("abx")),
        (b"key", lambda tree, outside: (tree / "key").symlink_to(outside / "key")),
        (b"../../../../outside/key", lambda tree, outside: None),
        (b"a/../../../../../outside/key", lambda tree, outside: (tree / "a").mkdir()),
        (b"/outside/key", lambda tree, outside: None),
        (b"key\0", lambda tree, outside: None),
        (b"/", lambda tree, outside: None),
        (b"pipe", lambda tree, outside: os.mkfifo(tree / "pipe")),
        (b"a", lambda tree, outside: (tree / "a").mkdir()),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_a_layer_opens_nothing_but_its_own_files(tmp_path, name, put):
    blob = planted(tmp_path, name, put)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises((OSError, SparkError)):
            image_blobs.send(ours, blob)
        ours.close()
        assert theirs.recv(1000) == b""


def test_what_is_no_file_is_not_even_opened(tmp_path, monkeypatch):
    """A watchdog or a tape acts when it is opened."""
    blob = planted(tmp_path, b"pipe", lambda tree, outside: os.mkfifo(tree / "pipe"))
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *more, **named: opened.append(path) or real(path, *more, **named))
    with pytest.raises(OSError, match=r"no regular file"):
        image_blobs.send(socket.socket(), blob)
    assert "pipe" not in opened and len(opened) > 0


def test_names_as_tar_has_them_lead_into_the_layer(tmp_path):
    def put(tree, outside):
        (tree / "a").mkdir()
        (tree / "a/key").write_bytes(b"x" * len(SECRET))

    for number, name in enumerate((b"./a/key", b"/a/key", b"a//key")):
        (tmp_path / str(number)).mkdir()
        assert sent(planted(tmp_path / str(number), name, put)) == b"x" * len(SECRET)


def entry(name=""):
    return {"digest": digest(INDEX), "annotations": {"io.containerd.image.name": name}}


@pytest.mark.parametrize(
    ("name", "entries", "found"),
    [
        (NAME, [{"digest": digest(INDEX)}], True),  # the one that there is
        ("vllm/vllm:1", [entry("docker.io/vllm/vllm:1"), {"digest": ELSEWHERE}], True),
        ("vllm:1", [entry("docker.io/library/vllm:1"), {"digest": ELSEWHERE}], True),
        (f"x/y@{digest(INDEX)}", [{"digest": ELSEWHERE}, entry()], True),
        (f"x/y@{ELSEWHERE}", [entry("x/y")], False),
        (NAME, [{"digest": ELSEWHERE}, entry("other:1")], False),
        (NAME, [{"digest": "sha256:../../etc"}], False),
        (NAME, [], False),
    ],
)
def test_an_image_of_an_archive_has_the_name_or_is_the_only_one(tmp_path, name, entries, found):
    path = layout(tmp_path / "a.tar", entries)
    if found:
        assert image_source.from_archive(name, path).root == digest(INDEX)
    else:
        with pytest.raises(SparkError, match=r"Name an archive that has"):
            image_source.from_archive(name, path)


def test_other_archives_are_left_to_docker(tmp_path):
    assert image_source.from_archive(NAME, layout(tmp_path / "a.tgz", [], mode="w:gz")) is None
    with tarfile.open(tmp_path / "docker.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("manifest.json"))
    assert image_source.from_archive(NAME, str(tmp_path / "docker.tar")) is None
    with pytest.raises(SparkError, match=r"cannot be read"):
        image_source.from_archive(NAME, str(tmp_path / "none"))


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"manifests": ["x"]}', b'{"layers": 7}'])
def test_a_damaged_archive(tmp_path, text):
    with pytest.raises(SparkError, match=r"damaged|Name an archive"):
        image_source.from_archive(NAME, layout(tmp_path / "a.tar", [], {"index.json": text}))


# --- server and receiver ---------------------------------------------------------------------------------------------


def free_port():
    with socket.create_server(("127.0.0.2", 0)) as found:
        return found.getsockname()[1]


@contextmanager
def offering(tmp_path, offered, allowed=("127.0.0.1", "127.0.0.2"), addresses=("127.0.0.2", "127.0.0.3"), port=0):
    """The unit's program, as systemd starts it."""
    port = port or free_port()
    images = {image_copy.repository(name): offered for name in (NAME, PINNED)}
    offer = image_blobs.Offer(port, TOKEN, addresses, allowed, images)
    file = tmp_path / "offer.json"
    file.write_text(json.dumps(document.plain(offer)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told_here:
        told_here.bind(str(tmp_path / "notify"))
        told_here.settimeout(30)
        text = f"import argparse; from {image_server.__name__} import run; run(argparse.Namespace(file={str(file)!r}))"
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen([sys.executable, "-c", text], env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                assert told_here.recv(100) == b"READY=1"
                yield port
            finally:
                process.kill()


def ask(port, path, method="GET", address="127.0.0.2", token=TOKEN, **headers):
    connection = http.client.HTTPConnection(address, port, timeout=10)
    connection.connect()
    connection.sock.sendall(token.encode())
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def test_the_server_answers_what_docker_asks(tmp_path):
    offered = oci(tmp_path)
    image = f"/v2/{image_copy.repository(NAME)}"
    with offering(tmp_path, offered) as port:
        assert ask(port, "/v2/")[0] == 200
        status, data, headers = ask(port, f"{image}/manifests/{digest(INDEX)}")
        assert (status, data, headers["Docker-Content-Digest"]) == (200, INDEX, digest(INDEX))
        assert headers["Content-Type"] == json.loads(INDEX)["mediaType"]
        assert ask(port, f"{image}/manifests/{digest(INDEX)}", "HEAD")[:2] == (200, b"")
        status, data, headers = ask(
            port, f"{image}/blobs/{digest(PACKED[0])}", Range="bytes=1000-", address="127.0.0.3"
        )
        assert (status, data) == (206, PACKED[0][1000:])
        assert headers["Content-Range"] == f"bytes 1000-{len(PACKED[0]) - 1}/{len(PACKED[0])}"
        assert ask(port, f"{image}/blobs/{digest(PACKED[0])}", Range="bytes=999999999-")[0] == 416
        for path in (
            f"{image}/blobs/{ELSEWHERE}",
            f"{image}/manifests/{digest(CONFIG)}",
            f"/v2/sparkmatrix/0000/blobs/{digest(CONFIG)}",
            f"{image}/blobs/../../../etc/passwd",
            "/etc/passwd",
        ):
            assert ask(port, path)[0] == 404
        assert ask(port, f"{image}/blobs/uploads/", "POST")[0] == 501  # nothing can be written


@pytest.mark.parametrize("token", ["", "b" * 48, TOKEN[:-1], TOKEN[:-1] + "\n", "a" * 47 + "b"])
def test_without_the_token_of_the_copy_nothing_is_answered(tmp_path, token):
    with offering(tmp_path, oci(tmp_path)) as port, pytest.raises((OSError, http.client.HTTPException)):
        ask(port, f"/v2/{image_copy.repository(NAME)}/manifests/{digest(INDEX)}", token=token)


def test_strangers_get_nothing(tmp_path):
    with offering(tmp_path, oci(tmp_path), allowed=("127.0.0.9",)) as port, pytest.raises(OSError):
        ask(port, "/v2/")


def test_the_server_ends_when_nobody_asks(monkeypatch):
    monkeypatch.setattr(image_server, "_IDLE_S", 0.2)
    ready = []
    offer = image_blobs.Offer(free_port(), TOKEN, ("127.0.0.2",), ())
    image_server.serve(offer, lambda: ready.append(True))
    assert ready


class Receiver:
    """Docker of a receiver: fetches over loopback what a real one does, and checks it."""

    def __init__(self, fails=(), classic=False):
        self.classic, self.configuration = classic, ""
        self.there, self.pulled, self.removed, self.fails, self.options = {}, {}, [], fails, ()

    def __call__(self, argv, timeout_s=0):
        words = list(argv)
        assert words.pop(0) == "docker"
        if words[0] == "--config":
            self.options, words = words[:2], words[2:]
        if words[:2] == ["image", "inspect"]:
            found = self.there.get(words[2])
            return Completed(0, json.dumps([{"Id": found}])) if found else Completed(1, "", "No such image")
        if words[:2] == ["image", "rm"]:
            del self.there[words[2]]
            self.removed.append(words[2])
        elif words[0] == "tag":
            if words[1] in self.fails:
                return Completed(1, "", "no space")
            self.there[words[2]] = self.there[words[1]]
        elif words[0] == "pull":
            return self.pull(words[-1])
        elif words[0] == "load":
            self.there.update(dict.fromkeys(self.fails, "sha256:loaded"))
            return Completed(0, "Loaded image: that")
        return Completed(0)

    def pull(self, name):
        host, _, rest = name.partition("/")
        port = int(host.partition(":")[2])
        image, _, wanted = rest.partition("@")
        way = {"address": "127.0.0.1", "token": ""}
        try:
            with socket.create_connection(("127.0.0.1", port)) as asks_for_tls:
                asks_for_tls.sendall(b"\x16\x03\x01\x02\x00")
                assert asks_for_tls.recv(100).startswith(b"HTTP/1.0 400")
            status, data, _headers = ask(port, f"/v2/{image}/manifests/{wanted}", **way)
            if status != 200 or digest(data) != wanted:
                return Completed(1, "", f"manifest of {name} unknown")
            told = json.loads(data)
            for one in told.get("manifests", [{"digest": wanted}]):
                status, made, _headers = ask(port, f"/v2/{image}/manifests/{one['digest']}", **way)
                for part in json.loads(made)["layers"] if status == 200 else ():
                    _status, got, _headers = ask(port, f"/v2/{image}/blobs/{part['digest']}", **way)
                    self.pulled[digest(got)] = part["digest"]
                self.configuration = json.loads(made)["config"]["digest"] if status == 200 else self.configuration
        except (OSError, http.client.HTTPException) as exc:
            return Completed(1, "", f"unexpected EOF {exc!r} for {name}")
        self.there[name] = self.configuration if self.classic else wanted
        return Completed(0)


def receive(docker, root, name=NAME, addresses=("127.0.0.2",), **told):
    """``told``: offered, token."""
    wanted = image_copy.Coming(name, "spark1", addresses)
    root.mkdir(exist_ok=True)
    return image_copy.receive(
        wanted, told.get("offered", digest(INDEX)), told.get("token", TOKEN), docker, root=str(root)
    )


@pytest.fixture
def port(monkeypatch):
    """The one of images on this machine."""
    found = free_port()
    monkeypatch.setattr(image_copy, "IMAGES", found)
    return found


def test_a_receiver_gets_it_over_both_halves_and_nothing_else_stays(tmp_path, port):
    docker = Receiver()
    with offering(tmp_path, oci(tmp_path), port=port):
        assert receive(docker, tmp_path, addresses=["127.0.0.2", "127.0.0.3"])
        assert not receive(docker, tmp_path)  # it is there
        docker.there.clear()
        assert receive(docker, tmp_path, addresses=["127.0.0.8", "127.0.0.3"])  # one half is dead
    assert docker.pulled == {digest(one): digest(one) for one in PACKED}
    assert docker.there == {NAME: digest(INDEX)}
    assert docker.removed == [image_copy.reference(NAME, digest(INDEX))] * 2


def test_a_node_that_died_is_named(tmp_path, port):
    docker = Receiver()
    for name in (NAME, PINNED):
        with pytest.raises(SparkError, match=r"did not arrive from spark1 .127.0.0.2 port .* refused") as found:
            receive(docker, tmp_path, name)
        assert "127.0.0.1" not in str(found.value)
    assert docker.there == {}


@pytest.mark.parametrize("told", [{"token": "b" * 48}, {"offered": ELSEWHERE}, {"offered": ""}, {"offered": "copy"}])
def test_an_image_that_nobody_has_told_the_run_of_is_not_taken(tmp_path, port, told):
    """Who has taken the address of the node that gives: without its token, or with an image of his own."""
    docker = Receiver()
    with offering(tmp_path, oci(tmp_path), port=port), pytest.raises(SparkError, match=r"spark1"):
        receive(docker, tmp_path, **told)
    assert docker.there == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another account")
def test_other_accounts_of_a_receiver_may_not_read_it(tmp_path, port):
    """While it comes, everybody could ask the port on loopback."""

    def asks(uid):
        come, go = os.pipe()
        if not (child := os.fork()):
            try:
                os.setuid(uid)
                os.write(go, b"%d" % ask(port, "/v2/", address="127.0.0.1", token="")[0])
            finally:
                os._exit(0)
        os.close(go)
        os.waitpid(child, 0)
        with os.fdopen(come, "rb") as stream:
            return stream.read()

    with offering(tmp_path, oci(tmp_path), port=port), image_copy._loopback(["127.0.0.2"], TOKEN):
        assert (asks(0), asks(65534)) == (b"200", b"")


def test_the_name_on_the_way_never_stays(tmp_path, port):
    docker = Receiver(fails=(image_copy.reference(NAME, digest(INDEX)),))
    with offering(tmp_path, oci(tmp_path), port=port), pytest.raises(SparkError, match=r"no space"):
        receive(docker, tmp_path)
    assert docker.there == {}


# --- an image that is named by its digest


TAGGED = f"nvcr.io/nvidia/vllm:{digest(INDEX).replace(':', '-')}"


class Registry:
    """Docker of a node that has the image, and what its registry answers."""

    def __init__(self, documents, image=""):
        self.documents, self.image, self.asked = documents, image or digest(CONFIG), []

    def __call__(self, argv, timeout_s=0):
        if "imagetools" in argv:
            self.asked.append(argv[-1])
            found = self.documents.get(argv[-1].partition("@")[2])
            return Completed(0, found.decode()) if found else Completed(1, "", "no such host")
        if argv[1] == "info":
            return Completed(0, json.dumps(INFO))
        return Completed(0, json.dumps([{"Id": self.image, "Os": "linux", "Architecture": "arm64"}]))


HERE = {"platform": {"os": "linux", "architecture": "arm64"}}
ABROAD = {"digest": ELSEWHERE, "platform": {"os": "linux", "architecture": "amd64"}}
SEVERAL = json.dumps(
    {"schemaVersion": 2, "manifests": [ABROAD, {**described(MANIFEST, image_source.MANIFEST), **HERE}]}
).encode()


@pytest.mark.parametrize("classic", [True, False])
@pytest.mark.parametrize("chain", [(SEVERAL, MANIFEST), (MANIFEST,)], ids=["an index", "a manifest"])
def test_the_registrys_own_documents_go_along(tmp_path, port, monkeypatch, classic, chain):
    """From Docker's classic store, which keeps none of them, into each of its stores, and on to the next node."""
    documents = {digest(one): one for one in chain}
    name = f"nvcr.io/nvidia/vllm@{digest(chain[0])}"
    registry = Registry(documents)
    overlay2(tmp_path)
    monkeypatch.setattr(image_copy.image_source, "from_docker", partial(image_source.from_docker, root=str(tmp_path)))
    offered = image_copy._from_docker(name, "", registry, str(tmp_path))
    assert len(registry.asked) == len(chain)
    assert image_copy._from_docker(name, "", registry, str(tmp_path)) == offered
    assert len(registry.asked) == len(chain)  # once
    monkeypatch.setattr(image_copy, "repository", lambda _name: "sparkmatrix/it")
    docker, receiver = Receiver(classic=classic), tmp_path / "receiver"
    with offering(tmp_path, offered, port=port):
        assert receive(docker, receiver, name, offered=offered.root)
    image = digest(CONFIG) if classic else offered.root
    assert docker.there == {image_copy.engine_image.local_name(name): image}
    kept = image_copy.engine_image.known(str(receiver))[image][digest(chain[0])]
    assert kept == {one: text.decode() for one, text in documents.items()}


def test_what_containerd_or_an_archive_has_needs_no_registry(tmp_path, port):
    docker = Receiver()
    with offering(tmp_path, oci(tmp_path), port=port):
        assert receive(docker, tmp_path, PINNED)
    assert docker.there == {TAGGED: digest(INDEX)}


OTHER_CONFIG = CONFIG.replace(b"arm64", b"other")
OTHER = MANIFEST.replace(digest(CONFIG).encode(), digest(OTHER_CONFIG).encode())


@pytest.mark.parametrize("classic", [True, False])
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param({}, id="no documents"),
        pytest.param({digest(INDEX): OTHER}, id="another document under this digest"),
        pytest.param({digest(INDEX): INDEX}, id="an index without its manifest"),
        pytest.param({digest(INDEX): INDEX, digest(MANIFEST): OTHER}, id="another manifest under this digest"),
        pytest.param({digest(INDEX): INDEX, digest(MANIFEST): MANIFEST}, id="the right documents, another image"),
    ],
)
def test_another_image_is_not_taken_for_the_one_that_is_named(tmp_path, port, lie, classic):
    found = oci(tmp_path)
    texts = {digest(OTHER): OTHER, **lie}
    more = {one: image_blobs.Blob(len(text), text=text.decode(), media="x") for one, text in texts.items()}
    blobs = {one: blob for one, blob in found.blobs.items() if not blob.media}
    docker = Receiver(classic=classic)
    lies = image_blobs.Offered(digest(OTHER), {**blobs, **more})
    with offering(tmp_path, lies, port=port), pytest.raises(SparkError, match=r"not taken"):
        receive(docker, tmp_path, PINNED, offered=digest(OTHER))
    assert docker.there == {}


@pytest.mark.parametrize(
    ("registry", "says"),
    [
        (Registry({}), r"its registry does not say .*no such host.*docker-buildx-plugin.*OCI archive"),
        (Registry({digest(SEVERAL): OTHER}), r"is something else"),
        (Registry({digest(SEVERAL): SEVERAL, digest(MANIFEST): MANIFEST}, ELSEWHERE), r"registry has another one"),
    ],
)
def test_a_node_gives_nothing_that_its_registry_does_not_know(registry, says):
    with pytest.raises(SparkError, match=says):
        image_pin.from_registry(f"x/y@{digest(SEVERAL)}", image_copy.engine_image.inspect("x", registry), registry)


def test_the_port_on_loopback_is_taken(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(image_copy, "IMAGES", taken.getsockname()[1])
        with pytest.raises(SparkError, match=r"port is taken .*ss -ltnp"):
            receive(Receiver(), tmp_path)


# --- the node that fetches -------------------------------------------------------------------------------------------


def test_what_is_there_is_not_fetched(tmp_path):
    docker = Receiver()
    docker.there[NAME] = "sha256:1"
    assert image_copy.obtain(NAME, "/no/archive", "/no/login", docker) == (None, False)


def test_an_archive_is_read_where_it_lies_or_loaded(tmp_path):
    offered, changed = image_copy.obtain(NAME, layout(tmp_path / "a.tar", [{"digest": digest(INDEX)}]), "", Receiver())
    assert (offered.root, changed) == (digest(INDEX), False)
    other = layout(tmp_path / "a.tgz", [], mode="w:gz")
    assert image_copy.obtain(NAME, other, "", Receiver(fails=(NAME,))) == (None, True)
    with pytest.raises(SparkError, match=r"does not have .*Loaded image: that"):
        image_copy.obtain(NAME, other, "", Receiver())


def test_an_image_is_built_from_its_dockerfile_alone(monkeypatch):
    seen = []

    def docker(argv):
        if argv[1] == "image":
            return Completed(1, "", "No such image")
        files = [path for path in Path(argv[-1]).rglob("*") if path.is_file()]
        seen.append((argv, {str(path.relative_to(argv[-1])): path.read_text() for path in files}))
        return Completed(0)

    monkeypatch.setattr(image_copy, "compilers", lambda: 3)
    build = image_copy.Built("FROM x\nARG MAX_JOBS=4\n", {"REF": "v1 {{ x }}"})
    assert image_copy.obtain(NAME, "/no/archive", "", docker, build) == (None, True)
    (argv, files), *_more = seen
    assert argv[:-1] == ["docker", "build", "--tag", NAME, "--build-arg=REF=v1 {{ x }}", "--build-arg=MAX_JOBS=3"]
    assert files == {"Dockerfile": build.dockerfile} and not Path(argv[-1]).exists()
    image_copy.obtain(NAME, "", "", docker, image_copy.Built("FROM x"))
    image_copy.obtain(NAME, "", "", docker, replace(build, arguments={"MAX_JOBS": "1"}))
    assert [argv[4:-1] for argv, _files in seen[1:]] == [[], ["--build-arg=MAX_JOBS=1"]]
    image_copy.obtain(NAME, "", "", docker, image_copy.Built("FROM x", files={"mods/a/run.sh": "b"}))
    assert seen[-1][1] == {"Dockerfile": "FROM x", "mods/a/run.sh": "b"}
    for path in ("../x", "/tmp/x", "a/../../x"):
        with pytest.raises(SparkError, match="no path beside a Dockerfile"):
            image_copy.obtain(NAME, "", "", docker, image_copy.Built("FROM x", files={path: "b"}))
    fails = Completed(1, "", f"{'#' * 5000} nvcc: Killed")
    broken = {"image": Completed(1, "", "No such image"), "build": fails}
    with pytest.raises(SparkError, match=r"cannot be built .*nvcc: Killed.*engine_image_build.*MAX_JOBS") as found:
        image_copy.obtain(NAME, "", "", lambda argv: broken[argv[1]], build)
    assert len(str(found.value)) < 2200


def test_compilers_have_room_in_memory(tmp_path):
    assert image_copy.compilers(str(tmp_path)) == 1
    (tmp_path / "proc").mkdir()
    for free_gib, wanted in ((3, 1), (13, min(2, os.cpu_count())), (10**6, os.cpu_count())):
        (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {free_gib * 1024**2} kB\n")
        assert image_copy.compilers(str(tmp_path)) == wanted


def test_a_login_is_read_by_nobody_else(tmp_path):
    with pytest.raises(SparkError, match=r"no config.json .*login REGISTRY"):
        image_copy.check_login(str(tmp_path / "none"))
    (tmp_path / "config.json").write_text("{}")
    for directory, file in ((0o755, 0o600), (0o700, 0o640), (0o700, 0o644)):
        tmp_path.chmod(directory)
        (tmp_path / "config.json").chmod(file)
        with pytest.raises(SparkError, match=r"others may read the password.*chmod 600"):
            image_copy.check_login(str(tmp_path))
    (tmp_path / "config.json").chmod(0o600)
    tmp_path.chmod(0o700)
    docker = Receiver()
    monkey = {NAME: "sha256:1"}
    docker.pull = lambda name: docker.there.update(monkey) or Completed(0)
    assert image_copy.obtain(NAME, "", str(tmp_path), docker) == (None, True)
    assert docker.options == ["--config", str(tmp_path)]


def test_the_offer_is_a_unit_of_its_own_slice(tmp_path, monkeypatch):
    asked = []

    def node(argv):
        asked.append(list(argv))
        return Completed(0, json.dumps([{"Id": digest(INDEX)}]))

    written = {}
    monkeypatch.setattr(image_copy, "write_state", lambda path, data: written.update({path: json.loads(data)}))
    dropped = []
    monkeypatch.setattr(image_copy, "drop_state", dropped.append)
    archived = {NAME: oci(tmp_path)}
    to = image_blobs.Offer(image_copy.IMAGES, TOKEN, ("10.10.0.1",), ("10.10.0.2",))
    assert image_copy.offer([NAME], to, archived, node) == {NAME: digest(INDEX)}
    assert dropped[-1] == image_copy.OFFER  # with the token in it
    told_to = document.load(image_blobs.Offer, written[image_copy.OFFER])
    assert (told_to.addresses, told_to.allowed, told_to.token) == (("10.10.0.1",), ("10.10.0.2",), TOKEN)
    assert told_to.images[image_copy.repository(NAME)].root == digest(INDEX)
    started = next(argv for argv in asked if argv[0] == "systemd-run")
    assert "--slice=sparkmatrix-engine.slice" in started
    assert started[-2:] == ["offer-images", image_copy.OFFER]
    assert TOKEN not in str(started)

    def refuses(argv):
        return Completed(int(argv[0] == "systemd-run"), "Address already in use" if argv[0] == "journalctl" else "")

    dropped.clear()
    with pytest.raises(SparkError, match=r"other nodes cannot fetch .*Address already in use.*from_peers"):
        image_copy.offer([NAME], to, archived, refuses)
    assert dropped[-1] == image_copy.OFFER
    with pytest.raises(SparkError, match=r"fewer than 32"):
        image_copy.offer([NAME], replace(to, token=""), archived, node)


def test_the_modules_in_check_mode(monkeypatch):
    there: dict[str, str] = {}
    monkeypatch.setattr(
        image_copy.engine_image, "find", lambda name: image_copy.engine_image.Image(id=there.get(name, ""))
    )
    made = calls.run("image_fetch", {"fetch": [NAME]}, True)
    assert (made["changed"], made["fetched"]) == (True, [NAME])
    there[NAME] = "sha256:1f0c"
    made = calls.run("image_fetch", {"fetch": [NAME]}, True)
    assert (made["changed"], made["fetched"], made["ids"]) == (False, [], there)
    assert not calls.run("image_fetch", {"images": [NAME]}, True)["changed"]
    receipts = [{"image": NAME, "source": "spark1", "addresses": []}]
    assert calls.run("image_receive", {"receipts": receipts, "token": TOKEN}, True)["received"] == [NAME]
