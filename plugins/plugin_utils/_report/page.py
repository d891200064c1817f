# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The page as one text of HTML: the template, filled. No script, no address: it can be sent and opened anywhere."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import jinja2
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Service
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import drawings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import view as views
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.drawings import number
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.view import Table, View
from markupsafe import Markup

HERE = Path(__file__).parent


def render(view: View, example: str = "") -> str:
    """``example``: a line above all, for a page that was not measured."""
    counter = itertools.count(1)
    text = _template().render(
        view=view,
        example=example,
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        ids=lambda: f"i{next(counter)}",  # no id is made from a word of a node
        drawings=drawings,
        number=number,
        moment=views.moment,
        counted=views.counted,
        of=views.of,
        some=views.some,
        heading=views.heading,
        places=views.places,
        options_table=options_table,
    )
    return text.encode("utf-8", "replace").decode()  # JSON can bring half of a sign


@functools.lru_cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2")


def options_table(service: Service) -> Table:
    return Table(("Option", "Value"), tuple((name, value or "(on)") for name, value in service.options.items()))
