# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A rule: one fault that can be found, under one name from the sensor to the alert."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import FAIL, WARN

__all__ = ["FAIL", "WARN", "Alert", "Rule"]

ANY = frozenset({"preflight"})  # every run has it
# Layers whose result on one node depends on all the others.
WHOLE = frozenset({"access", "fabric", "plan", "artifacts", "ray", "engine", "verify"})
FABRIC = frozenset({"fabric"})
AFTER_FABRIC = frozenset({"plan", "artifacts", "ray", "engine", "verify"})
SERVING = frozenset({"ray", "engine"})
MODELS = SERVING | {"artifacts"}
# Layers that use the GPU: a plan alone is arithmetic.
GPU = frozenset({"ray", "engine", "verify"})


@dataclass(frozen=True)
class Alert:
    """How Prometheus sees the fault. ``where``: what it is about, as Prometheus fills it in. ``wait``: for so long.
    ``sign`` tells the alerts of one rule apart. ``severity``: where it is not that of the rule."""

    expr: str
    where: str
    wait: str = "2m"
    sign: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Rule:
    """``title`` says what is wrong, ``why`` what it costs and how it comes about, ``otherwise`` what to do if the
    remedy does not help; a finding that knows a better remedy has its own. ``severity`` is the usual one.

    A rule with ``layers`` is a check before a run: a run of these layers makes it (``_preflight`` has its predicate).
    ``fixed`` says why its severity cannot be changed, for what would otherwise destroy something or cannot work at all.
    ``needs`` names the parts of ``node_info`` that are read only on demand.
    """

    id: str
    title: str
    why: str
    remedy: str = ""
    otherwise: str = ""
    source: str = "docs/preflight.md"
    severity: str = FAIL
    layers: frozenset[str] = frozenset()
    fixed: str = ""
    needs: frozenset[str] = frozenset()
    alerts: tuple[Alert, ...] = ()

    @property
    def help(self) -> str:
        """All that can be done."""
        return f"{self.remedy}. If that does not help: {self.otherwise}" if self.otherwise else self.remedy


NODE = "{{ $labels.node }}"
HALF = f"{NODE} {{{{ $labels.interface }}}}"
SERVICE = "{{ $labels.service }}"
DRIFT_OLD_S = 2 * 86400  # longer than anybody lets the timer wait


def half_drifted(rule: str, sign: str = "", severity: str = "") -> Alert:
    """The fabric of a node compared with its fact, every few seconds."""
    return Alert(f'sparkmatrix_fabric_drift{{kind="{rule}"}} == 1', HALF, "1m", sign, severity)


def drifted(rule: str, sign: str = "") -> Alert:
    """What ``sparkmatrix drift`` has found, where its timer runs."""
    where = "{{ $labels.host }} (there: sudo sparkmatrix drift)"
    return Alert(f'max by (host, kind) (sparkmatrix_drift{{kind="{rule}"}}) > 0', where, "0s", sign, WARN)
