# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which layers a run touches: the playbook's own list, narrowed by ``--tags`` and ``--skip-tags``.

A playbook may have parts besides, with tags of their own: each names the layers that it needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling

LAYERS = (
    "access",
    "os_stabilization",
    "fabric",
    "plan",
    "artifacts",
    "ray",
    "engine",
    "gateway",
    "web_ui",
    "observability",
    "verify",
)
KNOWN_TAGS = ("preflight", *LAYERS)
# Words that Ansible itself gives a meaning.
SPECIAL_TAGS = frozenset({"all", "always", "never", "tagged", "untagged"})
NOT_NAMED = "/etc/ansible/hosts"  # where Ansible looks for an inventory by itself
# The plan is computed whenever a layer that acts on it is selected.
PLANNED = frozenset({"artifacts", "ray", "engine", "gateway", "web_ui", "observability", "verify"})

Parts = Mapping[str, Sequence[str]]
NO_PARTS: Parts = MappingProxyType({})


def select(
    playbook_layers: Sequence[str], run_tags: Sequence[str], skip_tags: Sequence[str], parts: Parts = NO_PARTS
) -> tuple[list[str], list[Finding]]:
    """Return the selected layers in running order, and a finding for every tag that no layer has.

    A mistyped tag would otherwise select nothing and end green. Only ``preflight`` selects no layer on purpose. Tools
    skip tags of their own (Molecule: ``notest``), so of those only what looks like a mistyped layer is refused.
    """
    known = {*KNOWN_TAGS, *parts, *SPECIAL_TAGS}
    unknown_tags = [("--tags", tag) for tag in dict.fromkeys(run_tags) if tag not in known]
    unknown_tags += [
        ("--skip-tags", tag)
        for tag in dict.fromkeys(skip_tags)
        if tag not in known and spelling.closest(tag, KNOWN_TAGS)
    ]
    findings = [Finding(option, f"there is no layer {tag!r}", _suggestion(tag, parts)) for option, tag in unknown_tags]
    wanted = set(playbook_layers or LAYERS)
    unknown = sorted(wanted - set(LAYERS))
    findings += [Finding("spark_layers", f"there is no layer {name!r}", _suggestion(name)) for name in unknown]
    return [layer for layer in tagged(run_tags, skip_tags, parts) if layer in wanted], findings


def tagged(run_tags: Sequence[str], skip_tags: Sequence[str], parts: Parts = NO_PARTS) -> list[str]:
    """The layers that the tags select, whichever playbook it is, with the plan where one of them acts on it."""
    everything = bool({"all", "tagged"} & set(run_tags)) or not run_tags
    selected = {layer for layer in LAYERS if everything or layer in run_tags} - set(skip_tags)
    if selected & PLANNED:
        selected |= {"plan"} - set(skip_tags)
    selected |= {layer for tag in set(run_tags) & set(parts) - set(skip_tags) for layer in parts[tag]}
    return [layer for layer in LAYERS if layer in selected]


def _suggestion(word: str, parts: Parts = NO_PARTS) -> str:
    hint = spelling.did_you_mean(word, [*KNOWN_TAGS, *parts], shown=repr)
    own = f"; parts of this playbook: {', '.join(parts)}" if parts else ""
    return f"{hint}{' ' if hint else ''}The layers are: {', '.join(KNOWN_TAGS)}{own}"


def missing_sparks(sparks: Sequence[str], sources: Sequence[str]) -> list[Finding]:
    """An inventory without the group ``sparks`` would match no host and end green."""
    if sparks:
        return []
    where, what = f"inventory {', '.join(sources)}".strip(), "there is no host in the group 'sparks'"
    lost = [source for source in sources if "," not in source and not os.path.exists(source)]
    if lost == [NOT_NAMED]:
        where, what = "inventory", "none was named"
    elif lost:
        where, what = f"inventory {', '.join(lost)}", "there is no such file or folder"
    remedy = "Name yours with -i, for example -i inventories/mine; its group 'sparks' lists the machines"
    return [Finding(where, what, remedy)]


def injected_facts(injected: bool) -> list[Finding]:
    """Ansible puts what any module answers as ``ansible_facts`` over variables of the inventory and defaults of ours:
    also over names of files on this computer."""
    found = (
        "answers of machines become variables (inject_facts_as_vars), so one that was taken over could change settings"
        " of this collection, and be sent files of this computer"
    )
    remedy = "Write inject_facts_as_vars = false below [defaults], or: export ANSIBLE_INJECT_FACT_VARS=false"
    return [Finding("ansible.cfg", found, remedy, severity="warning")] if injected else []


def unread_configuration(config_file: str, playbook_dir: str, started_in: str) -> list[Finding]:
    """Ansible reads ``ansible.cfg`` of the directory that it is started in. Whoever has one of his own knows that."""
    folders = [os.path.realpath(os.path.join(playbook_dir, way)) for way in (".", "..", "../..") if playbook_dir]
    checkout = next((folder for folder in folders if os.path.isfile(os.path.join(folder, "ansible.cfg"))), "")
    if config_file or not checkout:
        return []
    here = os.path.realpath(started_in) == checkout
    why = "every user may write into this directory" if here else f"this run was started in {started_in}"
    other = "" if here else f"Start it in {checkout}, or: "
    return [
        Finding(
            "ansible.cfg",
            f"it is not read, since {why}; what you see is longer, and machines warn of their Python",
            f"{other}export ANSIBLE_CONFIG={checkout}/ansible.cfg",
            severity="warning",
        )
    ]
