# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a hub has is asked, chosen, downloaded by a client that may fail in every way, and verified.

The client here is a script that copies; the real one meets the same hub in ``tests/scenarios/test_hub_client.py``.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pathlib
import pwd
import re
import subprocess
import sys
import tempfile
import time
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import model_manifest
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, hub, hub_client
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

ROOT = pathlib.Path(__file__).resolve().parents[5]
_SPEC = importlib.util.spec_from_file_location("lab_hub", ROOT / "tests/lab/hub.py")
lab = importlib.util.module_from_spec(_SPEC)
sys.modules["lab_hub"] = lab  # dataclasses look themselves up there
_SPEC.loader.exec_module(lab)

NAME = "org/model"
WEIGHTS = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer/vocab.txt": b"a\nb\n",
    "empty.txt": b"",
    "model.safetensors.index.json": json.dumps({"weight_map": dict(enumerate(WEIGHTS))}).encode(),
    WEIGHTS[0]: model_manifest.safetensors(b"a" * 9000),
    WEIGHTS[1]: model_manifest.safetensors(b"b" * 7000),
    "original/model.safetensors": b"x" * 50_000,
    **{f"small-{number}.txt": b"%d" % number for number in range(60)},  # more than one page
}
GATED = {"config.json": b"{}", "model.safetensors": b"x"}
NEEDED = {path: content for path, content in FILES.items() if not path.startswith("original/")}
SIZE = sum(map(len, NEEDED.values()))


@pytest.fixture(scope="module")
def served():
    there = lab.Hub({NAME: lab.repository(FILES), "org/gated": lab.repository(GATED, gated=True)}, token="hf_secret")
    with there.serve():
        yield there


def ask(served: Any, name: str = NAME, revision: str = "", **environment: str) -> hub.Listing:
    return hub.ask(name, revision, {"HF_ENDPOINT": served.url, **environment})


def test_what_a_revision_consists_of_is_known_before_a_byte_moves(served: Any) -> None:
    before = served.bytes_sent
    listing = ask(served)
    assert listing.revision == lab.commit(FILES)
    assert {remote.path: remote.size for remote in listing.files} == {
        path: len(content) for path, content in FILES.items()
    }
    choice = listing.choose()
    assert set(choice.paths) == set(NEEDED)
    assert choice.left_out == {"original/": 50_000}
    assert served.bytes_sent == before
    assert ask(served, revision=listing.revision) == listing


@pytest.mark.parametrize(
    ("name", "revision", "found", "remedy"),
    [
        ("org/none", "", "there is no such repository", "Correct the name"),
        (NAME, "v9", "there is no revision v9", "Correct the revision"),
        ("org/gated", "", "its licence has not been accepted here: there is no token", "Accept it at {url}/org/gated"),
    ],
)
def test_a_refusal_says_what_to_do(served: Any, name: str, revision: str, found: str, remedy: str) -> None:
    with pytest.raises(SparkError) as caught:
        ask(served, name, revision)
    assert found in caught.value.found
    assert remedy.format(url=served.url) in caught.value.remedy


def test_a_licence_that_was_accepted(served: Any, tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    assert ask(served, "org/gated", HF_TOKEN_PATH=str(token)).choose().paths
    token.write_text("hf_other")
    with pytest.raises(SparkError, match="not been accepted with the token"):
        ask(served, "org/gated", HF_TOKEN_PATH=str(token))
    assert not served.leaked


def test_a_hub_that_is_none(served: Any) -> None:
    with pytest.raises(SparkError, match="no address of a hub"):
        hub.ask(NAME, "", {"HF_ENDPOINT": "file:///etc"})
    with pytest.raises(SparkError, match="cannot be reached from this node"):
        hub.ask(NAME, "", {"HF_ENDPOINT": "http://127.0.0.1:9"})
    with pytest.raises(ValueError, match="name is"):
        hub.ask("../etc", "", {})


ANSWERS = {"sha": "0f" * 20}
ENTRY = {"type": "file", "path": "model.safetensors", "size": 1, "oid": "0f" * 20}


@pytest.mark.parametrize(
    ("told", "tree"),
    [
        ([], []),
        ({"sha": "../../x"}, []),
        (ANSWERS, {}),
        (ANSWERS, [{**ENTRY, "oid": "../../x"}]),
        (ANSWERS, [{**ENTRY, "oid": 5}]),
        (ANSWERS, [{**ENTRY, "size": -1}]),
        (ANSWERS, [{**ENTRY, "path": None}]),
        (ANSWERS, [{**ENTRY, "lfs": {"oid": "x", "size": 1}}]),
    ],
)
def test_a_hub_that_lies_is_refused(monkeypatch: pytest.MonkeyPatch, told: Any, tree: Any) -> None:
    def request(asked: Any, _environment: Any, _most: int) -> hub.Reply:
        return hub.Reply(200, body=json.dumps(tree if "/tree/" in asked.full_url else told).encode())

    monkeypatch.setattr(hub.model_files, "request", request)
    with pytest.raises(SparkError, match="does not answer as a hub does"):
        hub.ask(NAME, "", {})


@pytest.mark.parametrize("place", ["file:///etc/passwd", "//[", "gopher://x"])
def test_a_hub_leads_nowhere_else(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(hub.model_files, "request", lambda *_asked: hub.Reply(307, location=place))
    with pytest.raises((SparkError, ValueError)):
        hub.ask(NAME, "", {})


def test_the_token_does_not_go_where_the_hub_leads(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    asked = []

    def request(one: Any, _environment: Any, _most: int) -> hub.Reply:
        asked.append((one.full_url, one.get_header("Authorization")))
        return hub.Reply(307, location="https://elsewhere/x") if len(asked) == 1 else hub.Reply(500)

    (tmp_path / "token").write_text("hf_secret")
    monkeypatch.setattr(hub.model_files, "request", request)
    with pytest.raises(SparkError, match="answers HTTP 500"):
        hub.ask(NAME, "", {"HF_HOME": str(tmp_path)})
    assert asked == [
        (f"https://huggingface.co/api/models/{NAME}/revision/main", "Bearer hf_secret"),
        ("https://elsewhere/x", None),
    ]


def test_the_token_does_not_go_where_everybody_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    asked: list[str | None] = []

    def request(what: Any, _environment: Any, _most: int) -> Any:
        asked.append(what.get_header("Authorization"))
        return hub.Reply(302, location=what.full_url.replace("https:", "http:"))

    (tmp_path / "token").write_text("hf_secret")
    monkeypatch.setattr(hub.model_files, "request", request)
    with pytest.raises(SparkError):
        hub.ask(NAME, "", {"HF_HOME": str(tmp_path)})
    assert asked[:2] == ["Bearer hf_secret", None]


# --- the client, and who watches it ---

# Does what the tests tell it: each run takes the first line that is left.
CLIENT = r"""
import json, os, sys
asked = json.load(sys.stdin)
os.chdir(asked["place"])
source = sys.argv[1]
with open(source + "/said", "a") as said:
    names = ("HF_HUB_DISABLE_XET", "HF_TOKEN_PATH", "HOME", "SSL_CERT_FILE", "HF_TOKEN", "SECRET")
    said.write(json.dumps({name: os.environ[name] for name in names if name in os.environ}) + "\n")
    if "HF_TOKEN_PATH" in os.environ:
        said.write(open(os.environ["HF_TOKEN_PATH"]).read() + "\n")
with open(source + "/does") as plan:
    does, *rest = plan.read().splitlines() or ["all"]
with open(source + "/does", "w") as plan:
    plan.write("\n".join(rest))
word, _space, rest = does.partition(" ")
for one in asked["files"]:
    if os.path.exists(one["blob"]):
        continue
    with open(source + "/" + one["blob"], "rb") as whole, open(one["blob"] + ".part", "ab") as part:
        whole.seek(part.tell())
        if word in ("some", "error") and one["size"] > 1000:
            part.write(whole.read(1000))
            part.flush()
            break
        part.write(whole.read() if word != "wrong" else bytes(one["size"]))
    os.rename(one["blob"] + ".part", one["blob"])
if word == "error":
    print(rest)
    sys.exit(1)
sys.exit(3 if word == "some" else 0)
"""


class Told:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.progress: list[tuple[str, int, int]] = []

    def tell(self, *words: Any) -> None:
        self.progress.append(words)


@pytest.fixture(scope="module")
def listing(served: Any) -> hub.Listing:
    return ask(served)


@pytest.fixture
def brought(listing: hub.Listing, tmp_path: pathlib.Path):
    source = tmp_path / "source"
    source.mkdir()
    for remote in listing.files:
        (source / remote.blob).write_bytes(FILES[remote.path])
    cache = Cache(str(tmp_path / "home"))

    def bring(*does: str, **environment: str) -> tuple[Any, Told]:
        (source / "does").write_text("\n".join(does))
        (source / "said").write_text("")
        told = Told()
        # Its script stands in a file: arguments are for everybody to read.
        (source / "client.py").write_text(CLIENT)
        client = hub.Client(
            (sys.executable, "-IB", str(source / "client.py"), str(source)),
            environment,
            stall_s=600,
            pause_s=0.01,
        )
        made = hub.obtain(
            cache,
            listing,
            listing.choose(),
            client,
            tell=told.tell,
            say=told.said.append,
        )
        return made, told

    return cache, bring, source


def place(cache: Cache, made: Any) -> bool:
    return caches.place(cache, made, ["main"])


def test_what_arrives_is_verified_and_becomes_a_manifest(brought: Any) -> None:
    cache, bring, _source = brought
    made, told = bring()
    assert {file.path: file.sha256 for file in made.files} == {
        path: model_manifest.file(path, content).sha256 for path, content in NEEDED.items()
    }
    assert {file.blob for file in made.files} == {model_manifest.file(*one).blob for one in NEEDED.items()}
    assert place(cache, made)
    assert check.check(cache, made, full=True).whole
    assert told.progress[-1] == ("verified", SIZE, SIZE)
    assert ("downloaded", SIZE, SIZE) in told.progress
    assert told.said == []


def test_a_second_time_nothing_is_downloaded(brought: Any) -> None:
    cache, bring, source = brought
    made, _told = bring()
    assert bring("error")[0] == made  # not placed yet
    place(cache, made)
    assert bring("error")[0] == made
    assert (source / "said").read_text() == ""


def test_what_an_interrupted_copy_has_left_is_not_taken_for_whole(brought: Any) -> None:
    cache, bring, _source = brought
    made, _told = bring()
    place(cache, made)
    largest = max(made.files, key=lambda one: one.size)
    stale = cache.partial(made.revision) / "blobs"
    stale.mkdir(parents=True, exist_ok=True)
    (stale / largest.blob).write_bytes(bytes(largest.size))
    made, _told = bring()
    place(cache, made)
    assert check.check(cache, made, full=True).whole


def test_a_file_that_is_broken_is_downloaded(brought: Any, served: Any) -> None:
    cache, bring, _source = brought
    made, _told = bring()
    place(cache, made)
    data = NEEDED[WEIGHTS[0]]
    cache.blob(NAME, model_manifest.file(WEIGHTS[0], data).blob).write_bytes(bytes(len(data)))
    before = served.bytes_sent
    assert bring()[0] == made
    assert served.bytes_sent == before  # by the client, which here copies
    place(cache, made)
    assert check.check(cache, made, full=True).whole


def test_what_newer_clients_keep_for_all_models_is_not_downloaded(brought: Any) -> None:
    cache, bring, source = brought
    for path, content in NEEDED.items():
        blob = cache.blob(NAME, model_manifest.file(path, content).blob)
        store = pathlib.Path(cache.home, "hub/blobs", blob.name[:2], blob.name)
        for one in (blob, store):
            one.parent.mkdir(parents=True, exist_ok=True)
        store.write_bytes(content)
        blob.symlink_to(os.path.relpath(store, blob.parent))
    made, _told = bring("error")
    assert (source / "said").read_text() == ""
    place(cache, made)
    assert check.warm(cache, made).whole
    assert not cache.blob(NAME, made.files[0].blob).is_symlink()


def test_a_client_that_ends_goes_on_where_it_was(brought: Any) -> None:
    _cache, bring, _source = brought
    _made, told = bring("some", "some")
    assert len(told.said) == 2
    begun = [int(re.search(r"it goes on at (\d+) bytes of", said)[1]) for said in told.said]
    assert "(it ended with 3)" in told.said[0]
    assert begun[1] - begun[0] == 1000


def test_a_stall_is_resumed_and_two_are_taken_for_xet_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    listing = hub.Listing(NAME, "0f" * 20, "https://hub", (hub.Remote("a", 100, "1e" * 20),))
    runs: list[bool] = []

    def attempt(_asked: str, place: str, environment: Any, *_more: Any) -> tuple[str, str] | None:
        runs.append("HF_HUB_DISABLE_XET" in environment)
        (tmp_path / "x").write_bytes(bytes(len(runs)))
        return ("stalled", "no byte for 120 s") if len(runs) < 5 else None

    monkeypatch.setattr(hub, "_attempt", attempt)
    told = Told()
    hub.download(listing, listing.files, str(tmp_path), hub.Client(("x",), pause_s=0), say=told.said.append)
    assert runs == [False, False, True, True, True]
    assert told.said[0].endswith("(no byte for 120 s); it goes on at 1 bytes of 100")
    assert told.said[1].endswith("2 bytes of 100, without Xet")
    assert told.said[2].endswith("3 bytes of 100")


def test_who_sends_nothing_is_ended_with_all_it_has_started(tmp_path: pathlib.Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    place = tmp_path / "place"
    ended = hub._attempt("{}", str(place), {}, hub.Client(("/bin/sh", "-c", script), stall_s=3), lambda _count: None)
    assert ended == ("stalled", "no byte for 3 s")
    child = pathlib.Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    until = time.monotonic() + 60
    while child.exists() and b"600" in child.read_bytes() and time.monotonic() < until:
        time.sleep(0.05)
    assert time.monotonic() < until


def test_a_hub_that_sends_nothing_any_more(brought: Any) -> None:
    _cache, bring, source = brought
    sentence = '{"kind": "network", "says": "ConnectError: no route"}'
    with pytest.raises(
        SparkError, match=r"sends nothing any more \(ConnectError: no route\).*goes on where it was, with [1-9]"
    ):
        bring("some", *[f"error {sentence}"] * 20)
    assert len((source / "said").read_text().splitlines()) >= 5


@pytest.mark.parametrize(
    ("kind", "found", "remedy"),
    [
        ("refused", "refuses it (why)", "with the account that the token is of"),
        ("disk", "the disk is full (why)", "Remove models"),
        ("client", "not the one that this release knows (why)", "run the layer artifacts again"),
    ],
)
def test_what_a_second_attempt_does_not_mend(brought: Any, kind: str, found: str, remedy: str) -> None:
    _cache, bring, source = brought
    with pytest.raises(SparkError) as caught:
        bring(f"error {json.dumps({'kind': kind, 'says': 'why'})}")
    assert found in caught.value.found
    assert remedy in caught.value.remedy
    assert len((source / "said").read_text().splitlines()) == 1


def test_files_that_are_not_what_the_hub_says(brought: Any) -> None:
    _cache, bring, _source = brought
    _made, told = bring("wrong")
    assert f"{WEIGHTS[0]} is not what " in "\n".join(told.said)
    cache_again, bring, _source = brought
    caches.drop_partial(cache_again, lab.commit(FILES))
    with pytest.raises(SparkError, match="files that arrive are not what the hub says they are, "):
        bring("wrong", "wrong")


def test_the_client_gets_the_token_in_memory_and_nothing_of_our_environment(
    brought: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cache, bring, source = brought
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("HF_TOKEN", "x")
    (tmp_path / "token").write_text("hf_secret\n")
    bring(HF_TOKEN_PATH=f"{tmp_path}/token", REQUESTS_CA_BUNDLE=f"{tmp_path}/token", SECRET="x")
    environment, token = (source / "said").read_text().splitlines()
    assert token == "hf_secret"
    told = json.loads(environment)
    assert told.pop("HF_TOKEN_PATH").startswith("/proc/self/fd/")
    assert told == {"HOME": "/nonexistent", "SSL_CERT_FILE": f"{tmp_path}/token"}


# As the service user, the account of Ray and the engine: it waits to be looked at.
WAITS = """
import os, pathlib, sys, time
place = sys.stdin.read()
import ctypes
libc = ctypes.CDLL(None)
libc.getauxval.restype = ctypes.c_ulong
pathlib.Path(place, "secure").write_text(str(libc.getauxval(23)))  # AT_SECURE
pathlib.Path(place, "token").write_text(pathlib.Path(os.environ["HF_TOKEN_PATH"]).read_text())
pathlib.Path(place, "pid").write_text(str(os.getpid()))
os.chmod(f"{place}/pid", 0o644)
while not pathlib.Path(place, "seen").exists():
    time.sleep(0.02)
"""
LOOKS = """
import os, sys
process = f"/proc/{sys.argv[1]}"
for name in [*(f"fd/{number}" for number in range(64)), "environ", "mem", "maps", "root/tmp"]:
    try:
        print(name, os.open(f"{process}/{name}", os.O_RDONLY))
    except FileNotFoundError:
        pass
    except OSError as exc:
        print("refused")
import ctypes
if sys.argv[1] != "self":
    print("traced" if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None) == 0 else "refused")  # PTRACE_ATTACH
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the accounts of others")
def test_another_process_of_the_clients_account_does_not_reach_the_token(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("hf_secret")
    account = pwd.getpwnam("daemon")
    alike: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, ThreadPoolExecutor(1) as beside:
        os.chown(place, account.pw_uid, account.pw_gid)
        client = hub.Client(("/usr/bin/python3", "-IB", "-c", WAITS), user="daemon")
        told = {"HF_TOKEN_PATH": str(tmp_path / "token"), "PATH": os.defpath}
        ended = beside.submit(hub._attempt, place, place, told, client, lambda _now: None)
        pid = pathlib.Path(place, "pid")
        try:
            while not (pid.exists() and pid.read_text()) and not ended.done():
                time.sleep(0.02)
            argv = ["/usr/bin/python3", "-IB", "-c", LOOKS]
            looked = subprocess.run(
                [*argv, pid.read_text()], check=True, capture_output=True, text=True, cwd="/", **alike
            )
            itself = subprocess.run([*argv, "self"], check=True, capture_output=True, text=True, cwd="/", **alike)
        finally:
            pathlib.Path(place, "seen").touch()
        assert ended.result() is None
        assert pathlib.Path(place, "token").read_text() == "hf_secret"
        assert pathlib.Path(place, "token").stat().st_gid == account.pw_gid
        # Else its Python would not find libraries beside itself ($ORIGIN), as those of uv have them.
        assert pathlib.Path(place, "secure").read_text() == "0"
    assert set(looked.stdout.split("\n")) == {"refused", ""}
    assert "environ" in itself.stdout and "mem" in itself.stdout


def test_a_client_that_is_not_there(listing: hub.Listing, tmp_path: pathlib.Path) -> None:
    with pytest.raises(SparkError, match="does not start"):
        hub.obtain(Cache(str(tmp_path)), listing, listing.choose(), hub.Client(("/nonexistent/python",)))


def test_a_link_in_place_of_what_arrived_is_not_followed(tmp_path: pathlib.Path, brought: Any) -> None:
    cache, bring, _source = brought
    victim = tmp_path / "victim"
    victim.write_bytes(NEEDED[WEIGHTS[0]])
    download = cache.partial(lab.commit(FILES)) / "download"
    download.mkdir(parents=True)
    blob = model_manifest.file(WEIGHTS[0], NEEDED[WEIGHTS[0]]).blob
    (download / blob).symlink_to(victim)
    with pytest.raises(SparkError, match="is no file"):
        bring()
    (download / blob).unlink()
    os.link(victim, download / blob)
    with pytest.raises(SparkError, match="was exchanged"):
        bring()
    assert victim.read_bytes() == NEEDED[WEIGHTS[0]]


def swap(cache: Cache, revision: str, depth: int, elsewhere: pathlib.Path) -> None:
    """A directory of the cache becomes a link, as who runs the engine could do it."""
    way = ("sparkmatrix", "partial", revision, "blobs")
    at = pathlib.Path(cache.home, *way[: depth + 1])
    elsewhere.joinpath(*way[depth + 1 :]).mkdir(parents=True)
    at.parent.mkdir(parents=True, exist_ok=True)
    if at.exists():
        at.rename(elsewhere.parent / "moved")
    at.symlink_to(elsewhere)


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("moment", ["before", "_take"])
def test_a_directory_that_has_become_a_link_is_not_followed(
    tmp_path: pathlib.Path, brought: Any, monkeypatch: pytest.MonkeyPatch, depth: int, moment: str
) -> None:
    cache, bring, _source = brought
    revision, elsewhere = lab.commit(FILES), tmp_path / "elsewhere"
    if moment == "before":
        swap(cache, revision, depth, elsewhere)
    else:
        takes = hub._take

        def swapped(*arguments: Any) -> None:
            if not elsewhere.exists():
                swap(cache, revision, depth, elsewhere)
            takes(*arguments)

        monkeypatch.setattr(hub, "_take", swapped)
    with pytest.raises(SparkError, match="is no directory"):
        bring()
    assert not [path for path in elsewhere.rglob("*") if path.is_file()]


@pytest.mark.parametrize("swapped", ["", "hub/blobs", "hub/blobs/aa"])
def test_what_models_share_is_taken_from_its_store_only(
    tmp_path: pathlib.Path, brought: Any, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    cache, bring, _source = brought
    made, _told = bring()
    place(cache, made)
    blob = cache.blob(NAME, model_manifest.file(WEIGHTS[0], NEEDED[WEIGHTS[0]]).blob)
    store = pathlib.Path(cache.home, "hub/blobs/aa", blob.name)
    store.parent.mkdir(parents=True)
    blob.rename(store)
    blob.symlink_to(store)
    knows = hub.caches.shared_blob

    def found(*arguments: Any) -> str:
        shared = knows(*arguments)
        at = pathlib.Path(cache.home, swapped)
        if shared and swapped and not at.is_symlink():
            at.rename(tmp_path / "precious")
            at.symlink_to(tmp_path / "precious")
        return shared

    monkeypatch.setattr(hub.caches, "shared_blob", found)
    if swapped:
        with pytest.raises(SparkError, match="is no directory"):
            bring("error")
    else:
        assert bring("error")[0] == made
    assert len([path for path in cache.partial(made.revision).rglob("*") if path.is_file()]) == (not swapped)


# --- the client itself ---


class FakeClient:
    """What of Hugging Face's packages is called, as they are in the locked versions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: dict[str, bytes], xet: bool = False) -> None:
        self.content, self.asked, self.fails = content, [], 0
        top, download, own, storage = (types.ModuleType(f"fake{number}") for number in range(4))
        top.constants = types.SimpleNamespace(HF_HUB_DISABLE_XET=not xet, DOWNLOAD_CHUNK_SIZE=10_000_000)
        top.utils = types.SimpleNamespace(build_hf_headers=lambda: {"authorization": "Bearer x"})
        top.hf_hub_url = lambda name, path, revision, endpoint: f"{endpoint}/{name}/resolve/{revision}/{path}"
        download.http_get = self.http_get
        download.is_xet_available = lambda: xet
        own.XetTokenType = types.SimpleNamespace(READ="read")
        own.XetFileData = lambda **named: named
        own.xet_connection_info_refresh_url = lambda **named: f"{named['endpoint']}/{named['repo_id']}"
        own.refresh_xet_connection_info = lambda **_named: types.SimpleNamespace(
            endpoint="cas", access_token="t", expiration_unix_epoch=1
        )
        own.xet_headers_without_auth = lambda _headers: {}
        own.get_xet_session = lambda: types.SimpleNamespace(new_download_stream_group=lambda **_named: self)
        storage.XetFileInfo = lambda name, _size: name
        for name, made in {
            "huggingface_hub": top,
            "huggingface_hub.file_download": download,
            "huggingface_hub.utils._xet": own,
            "hf_xet": storage,
        }.items():
            monkeypatch.setitem(sys.modules, name, made)

    def http_get(self, url: str, file: Any, *, resume_size: int, headers: Any, expected_size: int) -> None:
        path = url.rpartition("/")[2]
        self.asked.append((path, resume_size))
        assert headers["Accept-Encoding"] == "identity"
        assert expected_size == len(self.content[path])
        if self.fails:
            self.fails -= 1
            file.write(self.content[path][resume_size : resume_size + 3])
            raise ConnectionResetError(104, "reset")
        file.write(self.content[path][resume_size:])

    def download_stream(self, name: str, start: int) -> Any:
        self.asked.append((name, start))
        yield self.content[name][start : start + 4]
        yield self.content[name][start + 4 :]


def run_client(monkeypatch: pytest.MonkeyPatch, place: pathlib.Path, content: dict[str, bytes], xet: str = "") -> int:
    files = [
        {"path": path, "size": len(data), "blob": f"blob-{path}", "xet": path if path == xet else ""}
        for path, data in content.items()
    ]
    asked = {"name": NAME, "revision": "1e" * 20, "hub": "https://hub", "place": str(place), "files": files}
    monkeypatch.chdir(place)  # it goes there, and this takes it back
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(asked)))
    return hub_client.run(None)


def test_the_client_appends_to_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"a": b"0123456789", "b": b"", "c": b"done", "d": b"too long before"}
    fake = FakeClient(monkeypatch, content)
    (tmp_path / "blob-c").write_bytes(b"done")
    (tmp_path / "blob-d.part").write_bytes(b"x" * 99)
    fake.fails = 1
    assert run_client(monkeypatch, tmp_path, {"a": content["a"]}) == 1
    assert json.loads(capsys.readouterr().out)["kind"] == "network"
    assert (tmp_path / "blob-a.part").read_bytes() == b"012"
    assert run_client(monkeypatch, tmp_path, content) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        f"blob-{path}": data for path, data in content.items()
    }
    assert sorted(fake.asked) == [("a", 0), ("a", 3), ("d", 0)]


def test_the_client_reads_xet_storage_where_a_file_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    content = {"a": b"0123456789", "b": b"small"}
    fake = FakeClient(monkeypatch, content, xet=True)
    (tmp_path / "blob-a.part").write_bytes(b"01234")
    assert run_client(monkeypatch, tmp_path, content, xet="a") == 0
    assert (tmp_path / "blob-a").read_bytes() == content["a"]
    assert sorted(fake.asked) == [("a", 5), ("b", 0)]


def test_a_file_that_is_shorter_than_it_should_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeClient(monkeypatch, {"a": b"0123456789"})
    monkeypatch.setattr(sys.modules["huggingface_hub.file_download"], "http_get", lambda *_a, **_n: None)
    assert run_client(monkeypatch, tmp_path, fake.content) == 1
    assert "a has 0 bytes of 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (OSError(28, "No space left on device"), "disk"),
        (OSError(122, "Disk quota exceeded"), "disk"),
        (ConnectionResetError(104, "reset"), "network"),
        (RuntimeError("data processing error"), "network"),
        (AttributeError("http_get"), "client"),
        (ModuleNotFoundError("huggingface_hub"), "client"),
        (type("GatedRepoError", (Exception,), {})("no"), "refused"),
    ],
)
def test_errors_of_the_client_have_a_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], exc: Exception, kind: str
) -> None:
    def fail(_stream: Any) -> None:
        raise exc

    monkeypatch.setattr(hub_client.json, "load", fail)
    assert hub_client.run(None) == 1
    assert json.loads(capsys.readouterr().out)["kind"] == kind


def test_an_address_that_lets_its_reader_in_is_not_told() -> None:
    said = hub_client._says(OSError("GET https://cdn/x?Signature=abc&Key=1 failed\nat once"))
    assert said == "OSError: GET https://cdn/x failed at once"
