# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model can be had: trees of files, a cache, and a hub that says what Hugging Face says."""

from __future__ import annotations

import http.server
import os
import shutil
import ssl
import threading
import urllib.error
from contextlib import contextmanager

import model_tree
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.model_files import Reply

NAME = "Qwen/Qwen3-8B"


def look(place, revision="", **environment):
    return model_files.look(str(place), revision, environment)


def test_a_whole_model_and_its_copy(tmp_path):
    seen = look(model_tree.model(tmp_path / "a"))
    assert (seen.where, seen.problem) == ("files", "")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert look(tmp_path / "b").signature == seen.signature != ""
    (tmp_path / "b/config.json").write_text('{"model_type": "qwen"}')
    assert look(tmp_path / "b").signature not in ("", seen.signature)
    model_tree.safetensors(tmp_path / "a/model-00001-of-00002.safetensors", 65)
    assert look(tmp_path / "a").signature not in ("", seen.signature)


SHARD = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (shutil.rmtree, "there is nothing at this path"),
        (lambda place: (place / "config.json").unlink(), "it has no config.json"),
        (lambda place: (place / "config.json").write_text("[]"), "this is JSON, but no object: []"),
        (lambda place: (place / "config.json").write_text("{"), "this is no JSON"),
        (lambda place: (place / SHARD).unlink(), f"{SHARD} is missing"),
        (lambda place: (place / SHARD).write_bytes(b""), f"{SHARD} is empty"),
        (lambda place: (place / SHARD).write_bytes((place / SHARD).read_bytes()[:-1]), "bytes of"),
        (lambda place: (place / SHARD).write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "git-lfs"),
        (lambda place: (place / SHARD).write_bytes(b"\xff" * 16), f"{SHARD} is damaged or cut off"),
        (lambda place: (place / SHARD).write_bytes(bytes([2, *[0] * 7]) + b"[]"), f"{SHARD} is damaged"),
        (lambda place: [path.unlink() for path in place.glob("model*")], "it has no weights"),
    ],
)
def test_what_is_missing_is_named(tmp_path, damage, says):
    damage(model_tree.model(tmp_path / "a"))
    seen = look(tmp_path / "a")
    assert says in seen.problem
    assert "engine_model_path" in seen.remedy
    assert not seen.signature


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: pipe(place / "config.json"),
        lambda place: pipe(place / "model.safetensors.index.json"),
        lambda place: pipe(place / SHARD),
        lambda place: os.truncate(place / "config.json", 1 << 40),
        lambda place: os.truncate(place / "model.safetensors.index.json", 1 << 40),
    ],
)
def test_nothing_that_an_engine_puts_there_is_read_for_ever_or_whole(tmp_path, damage):
    """The cache is the service user's, and root looks, on the head while it serves another model."""
    damage(model_tree.model(tmp_path / "a"))
    assert look(tmp_path / "a").problem


def test_many_missing_files_are_counted(tmp_path):
    for path in model_tree.model(tmp_path / "a", shards=9).glob("model-*"):
        path.unlink()
    assert look(tmp_path / "a").problem.endswith("and 6 more of its 9 files")


def test_a_repository_may_have_the_weights_twice(tmp_path):
    place = model_tree.model(tmp_path / "a")
    (place / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-00001.bin"}}')
    assert not look(place).problem
    (place / SHARD).unlink()
    assert SHARD in look(place).problem
    model_tree.safetensors(place / "consolidated.safetensors")
    assert not look(place).problem


def test_one_file(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert not look(file).problem
    file.write_bytes(b"")
    assert look(file).problem == "is empty"


@pytest.mark.parametrize("name", ["s3://bucket/model", "gs://x/y", "a/b/c"])
def test_what_only_the_engine_can_ask_for(name):
    assert look(name).where == "elsewhere"
    assert look(NAME, VLLM_USE_MODELSCOPE="True").where == "elsewhere"


def hub(status, code=""):
    asked = []

    def ask(request, _environment):
        asked.append(request)
        if isinstance(status, Exception):
            raise status
        return Reply(status, code)

    return asked, ask


def test_what_is_in_the_cache_is_not_asked_for(tmp_path):
    snapshot = model_tree.cached(tmp_path, NAME)
    asked, ask = hub(500)
    seen = model_files.look(NAME, "", {"HF_HOME": str(tmp_path)}, ask)
    assert (seen.where, seen.problem, asked) == ("cache", "", [])
    assert model_files.look(NAME, snapshot.name, {"HF_HUB_CACHE": f"{tmp_path}/hub"}, ask).where == "cache"
    assert model_files.look(NAME, "", {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}, ask).signature
    assert model_files.look(NAME, "v2", {"HF_HOME": str(tmp_path)}, ask).problem


@pytest.mark.parametrize(
    ("reply", "says", "do"),
    [
        ((200,), "", ""),
        ((307,), "", ""),
        ((404, "EntryNotFound"), "", ""),  # a repository without config.json
        ((404, "RevisionNotFound"), "there is no revision main of Qwen/Qwen3-8B", "Correct the revision"),
        ((401, "GatedRepo"), "its licence has not been accepted here: there is no token", "HF_TOKEN_PATH"),
        (
            (401, "RepoNotFound"),
            "there is no such repository, or it is a private one and there is no token",
            "a path begins",
        ),
        ((404,), "there is no such repository", "a path begins with /"),
        ((503,), "answers HTTP 503", "later"),
        ((urllib.error.URLError("Name or service not known"),), "cannot be reached from this node (Name or", "proxy"),
        ((TimeoutError("timed out"),), "cannot be reached from this node (timed out)", "engine_model_path"),
    ],
)
def test_what_the_hub_says(tmp_path, reply, says, do):
    asked, ask = hub(*reply)
    seen = model_files.look(NAME, "", {"HF_HOME": str(tmp_path)}, ask)
    assert seen.where == "download"
    assert asked[0].full_url == "https://huggingface.co/Qwen/Qwen3-8B/resolve/main/config.json"
    if says:
        assert says in seen.problem
        assert do in seen.remedy
        assert "not in the cache" in seen.problem
    else:
        assert not seen.problem


def test_an_endpoint_that_is_none():
    assert "no address of a hub" in look("a/b", HF_ENDPOINT="file:///etc").problem


def test_an_incomplete_cache_needs_the_hub(tmp_path):
    snapshot = model_tree.cached(tmp_path, NAME)
    (snapshot / SHARD).resolve().unlink()
    gone, ask = hub(OSError("no route"))
    assert "is a link to nothing, and https" in model_files.look(NAME, "", {"HF_HOME": str(tmp_path)}, ask).problem
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert "forbids downloads" in model_files.look(NAME, "", offline, ask).problem
    assert len(gone) == 1
    _asked, ask = hub(200)
    assert not model_files.look(NAME, "", {"HF_HOME": str(tmp_path)}, ask).problem


def test_the_token_goes_to_the_hub_and_not_into_messages(tmp_path):
    (tmp_path / "token").write_text("hf_abc\n")
    asked, ask = hub(403, "GatedRepo")
    seen = model_files.look(NAME, "1a", {"HF_TOKEN_PATH": f"{tmp_path}/token", "HF_ENDPOINT": "https://mirror/"}, ask)
    assert asked[0].get_header("Authorization") == "Bearer hf_abc"
    assert asked[0].full_url.startswith("https://mirror/Qwen/Qwen3-8B/resolve/1a/")
    assert "accepted with the token" in seen.problem
    assert "hf_abc" not in str(seen)
    (tmp_path / "token").write_text("a\nInjected: b")
    asked, ask = hub(200)
    model_files.look(NAME, "", {"HF_HOME": str(tmp_path)}, ask)
    assert not asked[0].has_header("Authorization")


@contextmanager
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(302 if "moved" in self.path else 401)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Location", "http://127.0.0.1:9/")
            self.end_headers()

        def log_message(self, *_words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def test_over_http(tmp_path):
    with server() as url:
        assert "licence" in look("a/gated", HF_ENDPOINT=url, HF_HOME=str(tmp_path)).problem
        assert not look("a/moved", HF_ENDPOINT=url, HF_HOME=str(tmp_path)).problem
    assert "cannot be reached" in look("a/b", HF_ENDPOINT=url, HF_HOME=str(tmp_path)).problem


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, {}),
        ({"HTTPS_PROXY": "http://p:1"}, {"https": "http://p:1"}),
        ({"https_proxy": "http://p:1", "HTTP_PROXY": "http://p:2"}, {"https": "http://p:1", "http": "http://p:2"}),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.org"}, {"https": "http://p:1"}),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "127.0.0.1,.lan"}, {}),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, {}),
    ],
)
def test_proxies_are_those_of_the_engine(monkeypatch, environment, told):
    monkeypatch.setenv("HTTPS_PROXY", "http://of-ansible:1")
    assert model_files._proxies("mirror.lan" if "no_proxy" in environment else "hub.example", environment) == told


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("folder", [False, True])
def test_authorities_are_those_of_the_engine(monkeypatch, tmp_path, name, folder):
    asked = []
    context = ssl.create_default_context()
    monkeypatch.setattr(model_files.ssl, "create_default_context", lambda **named: asked.append(named) or context)
    place = tmp_path if folder else tmp_path / "ca.pem"
    look("a/b", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path), **{name: str(place)})
    assert asked == [{"cafile": None if folder else str(place), "capath": str(place) if folder else None}]
