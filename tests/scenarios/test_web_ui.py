#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The chat page in a browser, beside a cluster that serves: the real package open-webui, gateway, Ray-less vLLM.

Usage: test_web_ui.py [--beside ID] [--keep] [--only STEP[,STEP]]

Signed up, asked, and the answer seen as it grows; a backup, the data lost, brought back; the page's key replaced, the
old one refused; a reset that leaves what it says and nothing else. Needs Chromium. Prints one JSON line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cluster
import web_ui_env
from cluster import LabError, run_steps
from suite.steps import BROWSERS
from test_report_page import DRIVER
from test_staying_up import HEAD, LAUNCHES, Cluster, Launch

WANTED = {"gateway_listen": ["127.0.0.1"], "web_ui_enabled": True, "web_ui_runtime": "venv"}
OPTIONS = ("-e", json.dumps(WANTED), "-e", "engine_launch=native")
PLAYBOOK = "playbooks/web_ui.yml"
PORT = 8080
PAGE = f"http://127.0.0.1:{PORT}"
ADMIN = ("Ada", "ada@example.org", "a-password-of-ada")
OTHER = ("Bob", "bob@example.org", "a-password-of-bob")
QUESTION = "Tell me a long story."
DATA, BACKUPS = "/var/lib/sparkmatrix/web-ui", "/var/lib/sparkmatrix/web-ui-backups"
KEY = "/etc/sparkmatrix/gateway/keys/web-ui.key"
NEW_KEY = "another-key-of-the-page-0123456789"
LOADED_S = 120_000  # ms that a page may take on a busy machine
TRACES = (
    "ls -d /etc/sparkmatrix/web-ui* /var/lib/sparkmatrix/web-ui* /etc/sparkmatrix/gateway/keys/web-ui.key"
    " /etc/systemd/system/sparkmatrix-web-ui* /run/sparkmatrix-web-ui 2>/dev/null; getent passwd sparkmatrix-web-ui;"
    f" sudo ss -Hltn | grep -oE ':{PORT} '; true"
)


class Here(Cluster):
    def boot(self) -> None:
        command = [sys.executable, str(pathlib.Path(web_ui_env.__file__)), "--cache", str(cluster.cache())]
        cluster.step("Build the environment of the chat page", command, "web_ui_env.log")
        super().boot()

    def traces(self) -> str:
        return self.node(HEAD, f"sudo sh -c {json.dumps(TRACES)}")

    def asked(self, key: str) -> str:
        """The status with which the gateway answers whoever shows this key."""
        config = f'header = "Authorization: Bearer {key}"\n'
        words = "curl -s -m 60 -o /dev/null -w '%{http_code}' -K - http://127.0.0.1:8081/v1/models"
        return self.node(HEAD, words, data=config.encode())

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """As a person reaches the page."""
        words = ["ssh", "-F", str(self.state / "ssh_config"), "-N", "-o", "ExitOnForwardFailure=yes"]
        way = subprocess.Popen([*words, "-L", f"{PORT}:127.0.0.1:{PORT}", HEAD], stdin=subprocess.DEVNULL)
        try:
            time.sleep(3)
            if way.poll() is not None:
                raise LabError(f"ssh does not forward port {PORT}: is it taken on this machine?")
            yield
        finally:
            way.terminate()
            way.wait()


# -- a browser


@functools.cache
def driver() -> Any:
    """Installed once, for the time of this program."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
    subprocess.run([*pip, DRIVER[0]], check=True, capture_output=True)
    sys.path.insert(0, folder)
    from playwright.sync_api import sync_playwright  # type: ignore[import-not-found]  # noqa: PLC0415 - just installed

    return sync_playwright


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        raise LabError(f"none of {', '.join(BROWSERS)} is on this machine")
    with driver()() as playwright:
        # Root has no other way; what is shown is ours.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=program, args=options)
        try:
            yield started
        finally:
            started.close()


def opened(started: Any, path: str = "") -> Any:
    page = started.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(LOADED_S)
    page.goto(f"{PAGE}/{path}")
    return page


def shown(page: Any, what: str) -> Any:
    """A picture of a page that is not as expected says more than a selector."""
    try:
        found = page.locator(what).first
        found.wait_for()
    except Exception as exc:
        page.screenshot(path=str(cluster.STATE / "web-ui.png"))
        raise LabError(f"the page shows no {what}: {page.inner_text('body')[:500]!r}; .lab/web-ui.png") from exc
    return found


def sign_up(page: Any, who: tuple[str, str, str]) -> None:
    shown(page, "text=Get started").click()  # of the first account only
    for field, text in zip(("#name", "#email", "#password"), who, strict=True):
        shown(page, field).fill(text)
    shown(page, "button[type=submit]").click()


def sign_in(page: Any, who: tuple[str, str, str]) -> None:
    shown(page, "#email").fill(who[1])
    shown(page, "#password").fill(who[2])
    shown(page, "button[type=submit]").click()


def ask(page: Any) -> list[int]:
    """Lengths of the answer, as it was seen to grow."""
    shown(page, "#chat-input")
    page.wait_for_timeout(5000)  # news of the release come over it, once
    if page.locator("[role=dialog]").count():
        page.locator("[role=dialog] button").last.click()
    page.locator("#chat-input").click()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    answer = shown(page, ".chat-assistant")
    seen, still = [0], time.monotonic()
    while time.monotonic() - still < 20:
        length = len(answer.inner_text().strip())
        if length > seen[-1]:
            seen.append(length)
            still = time.monotonic()
        page.wait_for_timeout(50)
    if len(seen) < 4:
        page.screenshot(path=str(cluster.STATE / "web-ui.png"))
        raise LabError(f"the answer was not seen to grow: {seen}: {answer.inner_text()[:300]!r}")
    return seen


# -- steps


def set_up(here: Here) -> dict[str, Any]:
    """A cluster that serves, with the page; nobody reads its keys, and it listens on loopback."""
    first = here.site("web-ui-site", "site.yml", *OPTIONS)
    secrets = [here.node(HEAD, f"sudo cat {path}").strip() for path in (KEY, "/etc/sparkmatrix/web-ui.key")]
    look = "sudo sh -c 'cat /etc/sparkmatrix/web-ui.env /etc/systemd/system/sparkmatrix-web-ui.service; ps -eo args;"
    look += f" journalctl --no-pager -u sparkmatrix-web-ui; stat -c %a {KEY} /etc/sparkmatrix/web-ui.key {DATA}'"
    said = here.node(HEAD, look) + (cluster.STATE / "web-ui-site.log").read_text()
    if any(secret in said for secret in secrets) or said.count("\n600\n600\n700\n") != 1:
        raise LabError("a key of the page may be read")
    listens = here.node(HEAD, f"sudo ss -Hltn 'sport = :{PORT}'").split()
    if listens[3:4] != [f"127.0.0.1:{PORT}"]:
        raise LabError(f"the page listens at {listens}")
    return {"seconds": round(first.seconds)}


def again(here: Here) -> dict[str, Any]:
    """The second run changes nothing."""
    done = here.site("web-ui-again", PLAYBOOK, *OPTIONS).unchanged()
    return {"seconds": round(done.seconds)}


def page(here: Here) -> dict[str, Any]:
    """Signed up, asked, and the answer seen as it grows; who comes second waits."""
    with here.forward(), browser() as started:
        first = opened(started, "auth")
        sign_up(first, ADMIN)
        seen = ask(first)
        second = opened(started, "auth")
        second.request.post(
            f"{PAGE}/api/v1/auths/signup", data=dict(zip(("name", "email", "password"), OTHER, strict=True))
        )
        asked = second.request.get(f"{PAGE}/api/models").status
        stranger = opened(started, "auth").request.get(f"{PAGE}/api/models").status
    if asked not in (401, 403) or stranger not in (401, 403):
        raise LabError(f"without an administrator's word models are shown: {asked}, {stranger}")
    return {"lengths": len(seen), "longest": seen[-1], "pending": asked, "stranger": stranger}


def remembered(here: Here) -> int:
    """Signed in again: how many times the page knows the question."""
    with here.forward(), browser() as started:
        there = opened(started, "auth")
        body = {"email": ADMIN[1], "password": ADMIN[2]}
        answer = there.request.post(f"{PAGE}/api/v1/auths/signin", data=body)
        if answer.status != 200:
            return -1
        token = answer.json()["token"]
        chats = there.request.get(f"{PAGE}/api/v1/chats/all", headers={"Authorization": f"Bearer {token}"})
        return int(chats.text().count(QUESTION))


def backup(here: Here) -> dict[str, Any]:
    """An archive while the page runs, all data lost, and all of it back."""
    before = remembered(here)
    saved = here.site("web-ui-backup", "playbooks/web_ui_backup.yml", *OPTIONS)
    (archive,) = here.node(HEAD, f"sudo find {BACKUPS} -name '*.gz' -perm 600 -user root").split()
    here.node(HEAD, f"sudo systemctl stop sparkmatrix-web-ui && sudo find {DATA} -mindepth 1 -delete")
    here.node(HEAD, "sudo systemctl start sparkmatrix-web-ui")
    here.site("web-ui-empty", PLAYBOOK, *OPTIONS)
    lost = remembered(here)
    here.node(HEAD, f"sudo sh -c 'head -c 2000 {archive} > /root/cut.tar.gz; chmod 600 /root/cut.tar.gz'")
    restore = "playbooks/web_ui_restore.yml"
    here.site("web-ui-cut", restore, *OPTIONS, "-e", "web_ui_archive=/root/cut.tar.gz", fails="the archive is refused")
    running = here.node(HEAD, "systemctl is-active sparkmatrix-web-ui").strip()
    back = here.site("web-ui-restore", restore, *OPTIONS, "-e", f"web_ui_archive={archive}")
    after = remembered(here)
    kept = here.node(HEAD, f"sudo ls -d {DATA}.before-*").split()
    if (lost, after, running, len(kept)) != (-1, before, "active", 1) or before < 1:
        raise LabError(f"before {before}, lost {lost}, after {after}, kept {kept}, beside a bad archive {running}")
    return {"backup_s": round(saved.seconds), "restore_s": round(back.seconds), "found": after}


def keys(here: Here) -> dict[str, Any]:
    """Another key for the page: the old one is refused, and the page goes on with the new one."""
    old = here.node(HEAD, f"sudo cat {KEY}").strip()
    file = cluster.STATE / "web-ui-keys.json"
    file.write_text(json.dumps({"gateway_keys": [{"name": "default"}, {"name": "web-ui", "key": NEW_KEY}]}))
    file.chmod(0o600)
    if here.asked(old) != "200":
        raise LabError(f"the key of the page opens nothing: {here.asked(old)}")
    done = here.site("web-ui-keys", PLAYBOOK, *OPTIONS, "-e", f"@{file}")
    answers = (here.asked(old), here.asked(NEW_KEY))
    if answers != ("401", "200"):
        raise LabError(f"old and new key: {answers}")
    with here.forward(), browser() as started:
        there = opened(started, "auth")
        sign_in(there, ADMIN)
        seen = ask(there)
    return {"seconds": round(done.seconds), "old": answers[0], "new": answers[1], "lengths": len(seen)}


def reset(here: Here) -> dict[str, Any]:
    """Taken away with the data kept, then without; the model goes on."""
    here.site("web-ui-reset", "reset.yml", "--tags", "web_ui")
    left = here.traces().split("\n")
    wanted = {"/etc/sparkmatrix/web-ui.key", DATA, BACKUPS}
    stays = {line for line in left if line.startswith("/") and ".before-" not in line and line != KEY}
    if stays != wanted or not any(line.startswith("sparkmatrix-web-ui:") for line in left) or f":{PORT} " in left:
        raise LabError(f"this is left: {left}")
    here.site("web-ui-gone", "reset.yml", "--tags", "web_ui", "-e", "web_ui_keep_data=false")
    off = ("-e", json.dumps({"gateway_listen": ["127.0.0.1"]}), "-e", "engine_launch=native")
    here.site("web-ui-gateway", "playbooks/gateway.yml", *off)
    left = [line for line in here.traces().split("\n") if line and ".before-" not in line]
    if left != [BACKUPS]:
        raise LabError(f"this is left: {left}")
    here.site("web-ui-verify", "verify.yml", *off)
    return {}


STEPS: dict[str, Callable[[Here], dict[str, Any]]] = {
    one.__name__: one for one in (set_up, page, again, backup, keys, reset)
}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    LAUNCHES["alone"] = Launch("", nodes=1)
    return run_steps("web_ui", Here(chosen.beside, "alone"), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
