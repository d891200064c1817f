# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which layers a run touches: the playbook's own list, narrowed by ``--tags`` and ``--skip-tags``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding

LAYERS = ("access", "os_stabilization", "fabric", "plan", "ray", "engine", "gateway", "verify")
KNOWN_TAGS = ("preflight", *LAYERS)
# Words that Ansible itself gives a meaning.
SPECIAL_TAGS = frozenset({"all", "always", "never", "tagged", "untagged"})
# The plan is computed whenever a layer that acts on it is selected.
PLANNED = frozenset({"ray", "engine", "gateway", "verify"})


def select(
    playbook_layers: Sequence[str], run_tags: Sequence[str], skip_tags: Sequence[str]
) -> tuple[list[str], list[Finding]]:
    """Return the selected layers in running order, and a finding for every tag that no layer has.

    A mistyped tag would otherwise select nothing and end green. Only ``preflight`` selects no layer on purpose. Tools
    skip tags of their own (Molecule: ``notest``), so of those only what looks like a mistyped layer is refused.
    """
    known = {*KNOWN_TAGS, *SPECIAL_TAGS}
    unknown_tags = [("--tags", tag) for tag in dict.fromkeys(run_tags) if tag not in known]
    unknown_tags += [("--skip-tags", tag) for tag in dict.fromkeys(skip_tags) if tag not in known and _close(tag)]
    findings = [Finding(option, f"there is no layer {tag!r}", _suggestion(tag)) for option, tag in unknown_tags]
    wanted = set(playbook_layers or LAYERS)
    unknown = sorted(wanted - set(LAYERS))
    findings += [Finding("spark_layers", f"there is no layer {name!r}", _suggestion(name)) for name in unknown]
    everything = bool({"all", "tagged"} & set(run_tags)) or not run_tags
    selected = wanted if everything else wanted & set(run_tags)
    if not everything and selected & PLANNED and "plan" in wanted:
        selected = selected | {"plan"}
    return [layer for layer in LAYERS if layer in selected and layer not in skip_tags], findings


def _close(word: str) -> list[str]:
    return difflib.get_close_matches(word, KNOWN_TAGS, n=1)


def _suggestion(word: str) -> str:
    close = _close(word)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}The layers are: {', '.join(KNOWN_TAGS)}"


def missing_sparks(sparks: Sequence[str], sources: Sequence[str]) -> list[Finding]:
    """An inventory without the group ``sparks`` would match no host and end green."""
    if sparks:
        return []
    return [
        Finding(
            "inventory " + ", ".join(sources) if sources else "inventory",
            "there is no host in the group 'sparks'",
            "Name an inventory with -i, for example -i inventories/4spark; list your machines in its group 'sparks'",
        )
    ]
