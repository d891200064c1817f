# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The page as its readers get it: what is in it, for whom, and that no machine writes into it but text."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import report_samples as samples
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import page
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.view import view

VOID = {"meta", "br"}
# In XML notation they close themselves.
CLOSED = {"line", "rect"}
EVIL = (
    """</title></style></script><script>alert(1)</script>"' onload=alert(2) <img src=//x/y>{{ 7 * 7 }}{% raw %}&lt;"""
)


class Page(HTMLParser):
    """Tags with their attributes and texts; every tag is closed where it has to be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in CLOSED
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "nav"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _tag, attributes in self.tags if name in attributes]


PAGES = {
    "healthy": samples.healthy(),
    "degraded": samples.degraded(),
    "pair": [samples.ring(2)],
    "ring": [samples.ring(8)],
    "gallery": [samples.gallery()],
    "hostile": [samples.hostile(EVIL)],
    "empty": [samples.run("doctor", "2026-11-23T07:30:00Z")],
}
TEXTS = {name: page.render(view(runs, [EVIL] if name == "hostile" else ())) for name, runs in PAGES.items()}


@pytest.fixture(params=list(TEXTS))
def shown(request):
    return Page(TEXTS[request.param])


def test_every_id_is_one_and_every_reference_leads_to_one(shown):
    ids = shown.values("id")
    assert len(ids) == len(set(ids))
    named = [name for names in shown.values("aria-labelledby") for name in names.split()]
    links = shown.values("href")
    assert {*named, *(link[1:] for link in links)} <= set(ids)
    assert all(link.startswith("#") for link in links)


def test_nothing_is_loaded_and_nothing_runs(shown):
    assert not {tag for tag, _ in shown.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "use",
    }
    names = {name for _, attributes in shown.tags for name in attributes}
    assert not [name for name in names if name.startswith("on")] and not names & {"src", "srcset", "xlink:href"}
    (policy,) = [one["content"] for tag, one in shown.tags if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")


def test_the_style_loads_nothing():
    assert not re.search(r"url\(|@import|https?:", (page.HERE / "page.css").read_text())


def test_drawings_have_words_and_a_table(shown):
    titled = [one for tag, one in shown.tags if tag == "svg" and one.get("role") == "img"]
    tags = [tag for tag, _ in shown.tags]
    assert len(titled) == tags.count("title") - 1 == tags.count("desc")
    assert all(one.get("aria-hidden") == "true" for tag, one in shown.tags if tag == "svg" and one not in titled)
    assert tags.count("details") >= len(titled)


def test_no_machine_writes_anything_but_text():
    """Every tag, attribute and class of the page with the lies is one that a healthy or degraded page has, too."""

    def made_of(name):
        return {
            (tag, name, value if name in ("class", "role", "style") else "")
            for tag, attributes in Page(TEXTS[name]).tags
            for name, value in attributes.items()
        }

    plain = TEXTS["hostile"]
    known = {(tag, name) for other in PAGES if other != "hostile" for tag, name, _ in made_of(other)}
    assert {(tag, name) for tag, name, _ in made_of("hostile")} <= known
    assert not [value for _, name, value in made_of("hostile") if name == "style"]
    assert EVIL.replace("\n", " ") in Page(plain).text
    assert "<script" not in plain and "<img" not in plain and "7 * 7" in plain
    assert not [one for one in Page(plain).values("id") if not re.fullmatch(r"i\d+[td]?|[a-z]+", one)]


def test_what_no_file_can_hold_is_replaced():
    assert "a?b" in page.render(view([samples.hostile("a\ud800b")]))


def test_an_example_says_so_first():
    text = Page(page.render(view(samples.healthy()), samples.EXAMPLE)).text
    assert text.index(samples.EXAMPLE) < text.index("Cluster example")


def test_the_gallery_has_every_cause_with_its_remedy():
    text = Page(TEXTS["gallery"]).text
    for cause in samples.FAULTS:
        for words in (cause.title, cause.why, cause.remedy, cause.otherwise, cause.source):
            assert " ".join(words.split()) in text, cause.id


def test_the_verdict_comes_before_all_else_and_the_remedy_before_the_evidence():
    text = Page(TEXTS["degraded"]).text
    order = ["✕ 1 problem", "A ConnectX-7 has not", "Reboot both", "Switch both off", "Evidence", "Cables", "Memory"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)


def test_a_page_of_fifty_runs_of_eight_machines_is_small():
    hosts = {f"spark{number}": number - 1 for number in range(1, 9)}
    first = samples.degraded()[-1]
    rdma = tuple(replace(one, host=a, peer=b) for a in hosts for b in hosts if a != b for one in first.rdma[:4])
    machines = tuple(replace(first.machines[0], host=host, rank=rank) for host, rank in hosts.items())
    runs = [
        replace(first, at=f"2026-{day // 28 + 1:02}-{day % 28 + 1:02}T07:30:00Z", rdma=rdma, machines=machines)
        for day in range(50)
    ]
    assert len(page.render(view(runs)).encode()) < 500_000


# --- contrast --------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


STYLE = (page.HERE / "page.css").read_text()
THEMES = [
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
]
OUTCOMES = ("fail", "warn", "unknown", "pass")
READ = [
    *itertools.product(("text", "muted", "link"), ("page", "card")),
    *((outcome, f"{outcome}-back") for outcome in OUTCOMES),
    *((outcome, "card") for outcome in OUTCOMES),
    *(("text", f"{outcome}-back") for outcome in OUTCOMES),
]
# Lines and marks: WCAG 1.4.11.
SEEN = [("none", "card"), *((one, "page") for one in OUTCOMES)]


@pytest.mark.parametrize("theme", range(3), ids=["light", "dark", "print"])
def test_everything_can_be_read_in_every_theme(theme):
    colours = THEMES[theme]
    assert colours.keys() == THEMES[0].keys()
    for pairs, least in ((READ, 4.5), (SEEN, 3)):
        poor = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
        assert {pair: found for pair, found in poor.items() if found < least} == {}
