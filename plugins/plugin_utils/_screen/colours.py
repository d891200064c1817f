# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Colours of a run's lines, as Ansible's own settings name them."""

from __future__ import annotations

from ansible import constants as C  # noqa: N812
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import page

COLOURS = {
    page.CHANGED: C.COLOR_CHANGED,
    page.FAILED: C.COLOR_ERROR,
    page.WARNING: C.COLOR_WARN,
    page.HEADING: "bright blue",  # readable on dark and light terminals
    page.ADDED: C.COLOR_DIFF_ADD,
    page.REMOVED: C.COLOR_DIFF_REMOVE,
}
