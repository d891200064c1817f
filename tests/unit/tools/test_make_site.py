# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The site of the documentation: its navigation is the front page, and what is wrong in it fails the build."""

from __future__ import annotations

import pathlib

import make_site
import pytest

# MyST's own use of Sphinx.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


def test_the_navigation_is_the_front_page() -> None:
    trees = dict(make_site.navigation((make_site.ROOT / make_site.FRONT).read_text()))
    assert trees["Quick starts"][:2] == ["../README", "start/one"]
    assert "tasks/rotate-keys" in trees["Tasks"] and "concepts/gids" in trees["Ideas"]
    pages = [page for tree in trees.values() for page in tree]
    assert len(pages) == len(set(pages)) > 50


def pages(place: pathlib.Path, front: str) -> pathlib.Path:
    source = place / "source"
    (source / "docs").mkdir(parents=True)
    (source / make_site.FRONT).write_text(f"# Front\n\n{front}\n" + make_site.toctree("All", ["one"]))
    (source / "docs/one.md").write_text("# One\n\n## A part\n\nText.\n")
    return source


@pytest.mark.slow
def test_a_site_can_be_searched_and_fetches_nothing(tmp_path: pathlib.Path) -> None:
    source = pages(tmp_path, "[one](one.md#a-part)")
    assert make_site.render(source, tmp_path / "site") == 2
    assert 'href="one.html#a-part"' in (tmp_path / "site/docs/README.html").read_text()
    assert "docs/one" in (tmp_path / "site/searchindex.js").read_text()
    assert "docs/README.html" in (tmp_path / "site/index.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("front", "page", "found"),
    [
        ("[one](two.md)", "", "two.md"),
        pytest.param("[one](one.md#no-part)", "", "no-part", marks=pytest.mark.full),
        # which the navigation does not have
        pytest.param("[one](one.md)", "docs/lost.md", "lost.md", marks=pytest.mark.full),
        pytest.param('<img src="https://example.com/x.png">', "", "example.com", marks=pytest.mark.full),
    ],
)
def test_what_is_wrong_fails_the_build(tmp_path: pathlib.Path, front: str, page: str, found: str) -> None:
    source = pages(tmp_path, front)
    if page:
        (source / page).write_text("# Lost\n")
    with pytest.raises(SystemExit, match=found):
        make_site.render(source, tmp_path / "site")
