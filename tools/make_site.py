#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Build the documentation as a site that needs no network, from the guides, and the reference from the argument
specifications of the roles and the documentation of the modules for users.

    tools/make_site.py DIRECTORY

docs/README.md is the front page, and its sections are the navigation. A link that leads nowhere, a page that the front
page does not list, and anything that a browser would fetch from elsewhere fail the build.
"""

from __future__ import annotations

import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = pathlib.Path(__file__).resolve().parents[1]
FRONT = "docs/README.md"
PAGES = ("*.md", "docs/*.md", "docs/*/*.md", "roles/*/README.md", "options/*.rst")
# Of what git has, where links of the guides lead.
FOLDERS = ("changelogs", "docs", "inventories", "molecule", "playbooks", "plugins", "roles", "tests")
COPIED = ("*.md", "LICENSE", "site.yml", *FOLDERS)
OUTSIDE = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]+"
    r"|<link\b(?![^>]*rel=\"canonical\")[^>]*\bhref=\"(?:https?:)?//[^\"]+"
)
OUTSIDE_STYLE = re.compile(r"url\([\"']?(?:https?:)?//[^)]+")
FURO_ERROR = "ERROR: Adding a table of contents in Furo-based"
SETTINGS = {
    "project": "sparkmatrix.cluster",
    "html_title": "sparkmatrix",
    "author": "The sparkmatrix.cluster authors",
    "extensions": ["myst_parser", "sphinx_antsibull_ext"],
    "root_doc": FRONT.removesuffix(".md"),
    "include_patterns": list(PAGES),
    "html_theme": "furo",
    "html_theme_options": {"navigation_with_keys": True},
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "myst_heading_anchors": 4,
    # Links within the reference to Ansible's own documentation, and the table of remedies, which begins at ###.
    "suppress_warnings": ["ref.ref", "myst.header"],
}


def copy_sources(place: pathlib.Path) -> None:
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)


def make_reference(place: pathlib.Path) -> list[str]:
    """Pages about every role and every module for users; their names."""
    made = place / "made"
    made.mkdir()
    bin_directory = pathlib.Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
    }
    words = ["collection", "--use-current", "--fail-on-error", "--no-indexes", "--squash-hierarchy"]
    command = [str(bin_directory / "antsibull-docs"), *words, "--dest-dir", str(made), "sparkmatrix.cluster"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    users = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/modules.md").read_text(), re.MULTILINE)
    names = [*sorted(path.name for path in made.glob("*_role.rst")), *(f"{name}_module.rst" for name in users)]
    (place / "options").mkdir()
    for name in names:
        # Furo has a table of contents of its own beside each page, and marks a second one as an error.
        text = re.sub(r"^\.\. contents::\n(?: +:.*\n)*", "", (made / name).read_text(), flags=re.MULTILINE)
        (place / "options" / name).write_text(text)
    shutil.rmtree(made)
    return [f"../options/{name.removesuffix('.rst')}" for name in names]


def navigation(front: str) -> list[tuple[str, list[str]]]:
    """Sections of the front page, and the pages that each links first; what the first one links stands below, too."""
    seen: set[str] = set()
    found = []
    for section in re.split(r"^## ", front, flags=re.MULTILINE)[2:]:
        links = re.findall(r"\]\(([\w./-]+\.md)[#)]", section)
        new = [link for link in dict.fromkeys(links) if link not in seen]
        seen.update(new)
        found.append((section.partition("\n")[0], [link.removesuffix(".md") for link in new]))
    return [(title, links) for title, links in found if links]


def toctree(title: str, entries: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", ":maxdepth: 1", f":caption: {title}", "", *entries, "```", ""])


def fetched_from_elsewhere(site: pathlib.Path) -> list[str]:
    found = []
    for kinds, pattern in ((("*.html",), OUTSIDE), (("*.css",), OUTSIDE_STYLE)):
        for path in (path for kind in kinds for path in site.rglob(kind)):
            found += [f"{path.relative_to(site)}: {match}" for match in pattern.findall(path.read_text())]
    return found


def render(source: pathlib.Path, site: pathlib.Path) -> int:
    """The number of pages."""
    shutil.rmtree(site, ignore_errors=True)
    said = io.StringIO()
    app = Sphinx(source, None, site, source.parent / "trees", "html", SETTINGS, status=None, warning=said)
    for name in ("routeros", "nvue"):
        app.add_lexer(name, TextLexer)
    app.build()
    problems = [line for line in said.getvalue().replace(f"{source}/", "").splitlines() if line]
    problems += fetched_from_elsewhere(site)
    problems += [f"{path}: {FURO_ERROR}" for path in site.rglob("*.html") if FURO_ERROR in path.read_text()]
    if problems:
        raise SystemExit("\n".join(problems))
    (site / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>sparkmatrix.cluster</title>'
        '<meta http-equiv="refresh" content="0; url=docs/README.html">'
        '<a href="docs/README.html">Documentation</a>\n'
    )
    return len(app.env.found_docs)


def build(site: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        source = pathlib.Path(temporary) / "source"
        source.mkdir()
        copy_sources(source)
        trees = navigation((ROOT / FRONT).read_text())
        trees.append(("Every setting and module", make_reference(source)))
        with (source / FRONT).open("a") as front:
            front.write("".join(toctree(*tree) for tree in trees))
        return render(source, site)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        raise SystemExit(str(__doc__))
    site = pathlib.Path(arguments[0])
    count = build(site)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{count} pages, {size / 1e6:.1f} MB: {site}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
