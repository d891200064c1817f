# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Templates print what they are given, and nothing that they are not."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import templates


def test_a_template_and_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "ROLES", tmp_path)
    (tmp_path / "role" / "templates").mkdir(parents=True)
    (tmp_path / "role" / "templates" / "name").write_text("{% if true %}\nexec {{ word | quote }} # <&>\n{% endif %}\n")
    assert templates.render("role", "name", word="it's {{ one }}") == "exec 'it'\"'\"'s {{ one }}' # <&>\n"
    with pytest.raises(jinja2.UndefinedError, match="'word' is undefined"):
        templates.render("role", "name")
