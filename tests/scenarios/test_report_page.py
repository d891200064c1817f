# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The page of the report in a real browser: nothing is loaded, nothing runs, it fits a phone, everybody can read it.

Needs Chromium and an index of Python packages: ``pytest -n 0 tests/scenarios/test_report_page.py``. With
``REPORT_PICTURES=DIR`` it leaves a picture of every page there; ``REPORT_README=1`` makes the one in docs/images anew.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/unit"), str(ROOT / "tests")]

import report_samples as samples
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import page as pages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.view import view
from suite.steps import BROWSERS

# The driver of a browser, and the usual checks of accessibility.
DRIVER = ("playwright==1.65.2", "axe-playwright-python==0.1.8")
EVIL = """</title></style><script>document.title = "evil"</script><img src=x onerror="document.title = 'evil'">"""
PAGES = {
    "degraded": samples.degraded(),
    "healthy": samples.healthy(),
    "ring": [samples.ring(8)],
    "pair": [samples.ring(2)],
    "gallery": [samples.gallery()],
    "hostile": [samples.hostile(EVIL)],
}
Files = dict[str, pathlib.Path]
PHONE, DESK = 375, 1280
README = ROOT / "docs/images/report.png"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program, f"none of {', '.join(BROWSERS)} is on this machine"
    folder = tmp_path_factory.mktemp("driver")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    done = subprocess.run([*pip, *DRIVER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    sys.path.insert(0, str(folder))
    from playwright.sync_api import sync_playwright  # type: ignore[import-not-found]  # noqa: PLC0415 - just installed

    with sync_playwright() as playwright:
        # Root has no other way; what is shown is ours.
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, runs in PAGES.items():
        written[name] = folder / f"{name}.html"
        written[name].write_text(pages.render(view(runs), samples.EXAMPLE), encoding="utf-8")
    return written


def opened(browser: Any, path: pathlib.Path, width: int = DESK, theme: str = "light", **options: Any) -> Any:
    """The page, and what it said and asked for."""
    shown = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options).new_page()
    shown.said = []
    shown.on("console", lambda message: shown.said.append(message.text))
    shown.on("pageerror", lambda error: shown.said.append(str(error)))
    shown.on("dialog", lambda dialog: (shown.said.append(dialog.message), dialog.dismiss()))
    shown.on("request", lambda asked: shown.said.append(asked.url) if asked.url != path.as_uri() else None)
    shown.goto(path.as_uri())
    return shown


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_it_is_quiet_fits_and_is_accessible(browser: Any, files: Files, name: str, theme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-not-found]  # noqa: PLC0415

    # The checks are a script; the page lets none run.
    shown = opened(browser, files[name], width, theme, bypass_csp=True)
    assert shown.said == []
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    if folder := os.environ.get("REPORT_PICTURES"):
        shown.screenshot(path=f"{folder}/{name}-{theme}-{width}.png", full_page=True)
    shown.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = Axe().run(shown).response["violations"]
    assert [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found] == []
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    shown.context.close()


def test_no_script_of_a_machine_runs(browser: Any, files: Files) -> None:
    shown = opened(browser, files["hostile"])
    assert shown.said == [] and shown.title() != "evil" and shown.locator("img, script").count() == 0
    # Even if one came into the page, the browser would refuse it.
    broken = files["hostile"].with_name("broken.html")
    broken.write_text(files["hostile"].read_text().replace("</main>", f"{EVIL}</main>"))
    refused = opened(browser, broken)
    assert refused.title() != "evil" and any("Content Security Policy" in text for text in refused.said)


def test_themes_differ(browser: Any, files: Files) -> None:
    back = {
        theme: opened(browser, files["healthy"], theme=theme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for theme in ("light", "dark")
    }
    assert back == {"light": "rgb(247, 247, 245)", "dark": "rgb(20, 23, 26)"}


def test_the_gallery_shows_every_cause_once_without_scripts(browser: Any, files: Files) -> None:
    shown = opened(browser, files["gallery"], java_script_enabled=False)
    titles = [text.strip() for text in shown.locator("article h3").all_inner_texts()]
    assert sorted(titles) == sorted(cause.title for cause in samples.FAULTS)
    assert all(shown.locator("article .do").nth(at).is_visible() for at in range(len(samples.FAULTS)))


def test_the_keyboard_goes_everywhere(browser: Any, files: Files) -> None:
    shown = opened(browser, files["degraded"])
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.id") == "verdict"
    evidence = shown.locator("article details").first
    assert not shown.locator(".evidence").first.is_visible()
    for _press in range(40):
        shown.keyboard.press("Tab")
        if shown.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    shown.keyboard.press("Enter")
    assert evidence.get_attribute("open") is not None and shown.locator(".evidence").first.is_visible()


def test_on_paper_all_is_open_and_light(browser: Any, files: Files) -> None:
    shown = opened(browser, files["degraded"], theme="dark")
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    closed = [one for one in shown.locator("details > *:not(summary)").all() if not one.bounding_box()]
    assert closed == [] and not shown.locator("nav").is_visible()
    assert len(shown.pdf()) > 10_000


@pytest.mark.skipif("REPORT_README" not in os.environ, reason="makes docs/images/report.png")
def test_the_picture_of_the_first_page(browser: Any, files: Files) -> None:
    shown = opened(browser, files["degraded"], 1000)
    shown.locator("section:has(#unknown)").evaluate("one => one.remove()")
    end = shown.locator("section:has(#cables)").bounding_box()
    shown.screenshot(
        path=str(README), clip={"x": 0, "y": 0, "width": 1000, "height": end["y"] + end["height"] + 24}, full_page=True
    )
    assert README.stat().st_size < 150_000
