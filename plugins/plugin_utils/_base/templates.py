# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Files of the roles that are rendered here, from typed values: a template prints, it does not decide."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path

import jinja2

ROLES = Path(__file__).resolve().parents[3] / "roles"


def render(role: str, name: str, **values: object) -> str:
    """``roles/<role>/templates/<name>``. A value that was not given is an error."""
    return _environment(role).get_template(name).render(**values)


@functools.cache
def _environment(role: str) -> jinja2.Environment:
    """Once for all nodes and services: it keeps what it has compiled."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROLES / role / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - no HTML
    )
    environment.filters["quote"] = shlex.quote  # for a shell
    return environment
