# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""The tool that pins recipes, against a hub and a registry of its own: it has met the real ones nowhere yet."""

import http.server
import json
import re
import threading
from pathlib import Path

import pytest
import renew_pins
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe

COMMIT, DIGEST = "a" * 40, f"sha256:{'b' * 64}"
RECIPES = Path(__file__).resolve().parents[3] / "roles/engine/files/recipes"


class Fake(http.server.BaseHTTPRequestHandler):
    """Models below ``org``, and images for those who have fetched a token, as registries ask for it."""

    def do_GET(self):
        if self.path == "/api/models/org/model/revision/main":
            self.say(200, {"sha": COMMIT})
        elif self.path == "/api/models/org/odd/revision/main":
            self.say(200, {"sha": "main"})
        elif self.path == "/token?service=here&scope=repository%3Ax%2Fy%3Apull":
            self.say(200, {"token": "for-x-y"})
        else:
            self.say(404, {})

    def do_HEAD(self):
        if self.path != "/v2/x/y/manifests/1.0":
            self.say(404, {})
        elif self.headers["Authorization"] != "Bearer for-x-y":
            realm = f"http://127.0.0.1:{self.server.server_port}/token"
            challenge = f'Bearer realm="{realm}",service="here",scope="repository:x/y:pull"'
            self.say(401, {}, {"WWW-Authenticate": challenge})
        else:
            assert "image.index" in self.headers["Accept"]
            self.say(200, {}, {"Docker-Content-Digest": DIGEST})

    def say(self, code, body, headers=None):
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, *words):
        pass


@pytest.fixture
def port(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server.server_port
    server.shutdown()
    server.server_close()


def run(monkeypatch, root):
    monkeypatch.setattr("sys.argv", ["renew_pins.py", "--root", str(root)])
    return renew_pins.main()


def test_recipes_and_default_images_are_pinned(tmp_path, monkeypatch, capsys, port):
    recipe, kind = tmp_path / renew_pins.RECIPES / "one.yml", tmp_path / "plugins/plugin_utils/_engine/kinds/vllm.py"
    page, base = tmp_path / "roles/web_ui/defaults/main.yml", tmp_path / "execution-environment.yml"
    for path in (recipe, kind, page):
        path.parent.mkdir(parents=True)
    image = f"127.0.0.1:{port}/x/y:1.0"
    recipe.write_text(f"# why\nmodel: org/model # its name\nimage: {image}\ndraft:\n  model: org/model\n  tokens: 3\n")
    kind.write_text(f'    image = "{image}"  # where nobody names one\n')
    page.write_text(f"web_ui_image: {image}\nweb_ui_other: a\n")
    base.write_text(f"images:\n  base_image:\n    name: {image}\n")
    assert run(monkeypatch, tmp_path) == 0
    assert f"web_ui_image: {image}@{DIGEST}\n" in page.read_text() and f"name: {image}@{DIGEST}\n" in base.read_text()
    assert recipe.read_text() == (
        f"# why\nmodel: org/model # its name\nrevision: {COMMIT}\nimage: {image}@{DIGEST}\n"
        f"draft:\n  model: org/model\n  revision: {COMMIT}\n  tokens: 3\n"
    )
    assert kind.read_text() == f'    image = "{image}@{DIGEST}"  # where nobody names one\n'
    said = capsys.readouterr().out
    assert f"{renew_pins.RECIPES}/one.yml\n  revision: {COMMIT}\n" in said and DIGEST in said
    # Again: nothing changes, and nothing is said.
    assert run(monkeypatch, tmp_path) == 0
    assert capsys.readouterr().out == ""


def test_what_cannot_be_asked_stays_and_is_named(tmp_path, monkeypatch, capsys, port):
    recipe = tmp_path / renew_pins.RECIPES / "one.yml"
    recipe.parent.mkdir(parents=True)
    text = (
        f"model: org/odd\nrevision: {'c' * 40}\nimage: 127.0.0.1:{port}/x/z:1.0@{DIGEST}\ndraft:\n  model: org/gone\n"
    )
    recipe.write_text(text)
    assert run(monkeypatch, tmp_path) == 1
    assert recipe.read_text() == text
    said = capsys.readouterr().err
    assert "org/odd: the hub names no commit, but 'main'" in said
    assert "org/gone: HTTP Error 404" in said and "/x/z:1.0: HTTP Error 404" in said
    assert [line.rpartition("; ")[2] for line in said.splitlines()] == [
        *("it stays as it was", "it stays without a pin", "it stays as it was"),
    ]


def test_every_image_that_is_shipped_has_a_digest_or_is_renewed():
    """Of what others start as it is; images of recipes are below."""
    root = RECIPES.parents[3]
    texts = [path.read_text() for glob in renew_pins.IMAGES for path in root.glob(glob)]
    pattern = r"(?:[\w.-]+\.io/[\w./-]+|lmsysorg/[\w-]+)(?::[\w.-]+|@sha256:\w+)"
    named = {name for text in texts for name in re.findall(pattern, text)}
    after = "".join(renew_pins.pinned(text, lambda name: COMMIT, lambda name: DIGEST) for text in texts)
    assert len(named) >= 6
    assert not [name for name in named if "@" not in name and f"{name}@{DIGEST}" not in after]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_pinned(path, tmp_path):
    after = renew_pins.pinned(path.read_text(), lambda name: COMMIT, lambda name: DIGEST)
    (tmp_path / path.name).write_text(after)
    recipe, problems = engine_recipe.read(tmp_path / path.name)
    assert problems == [] and recipe.not_pinned(recipe.image) == []
    assert renew_pins.pinned(after, lambda name: "", lambda name: "") == after
