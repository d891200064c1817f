# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Machines that a first login does not get into, and what helps: no answer, a host key that nobody has compared, a
login that is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import Candidate
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.host_key import Judged
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, refusal
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import Context
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.machines import check_gb10
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.reached import check_reached, reason

STRANGERS = "Nobody has vouched for the host keys of these machines. No password was sent, and nothing was changed:"
_ANOTHER = "it was installed again or replaced, another machine had its address before, or somebody is in between"
_ADDRESS = "At its screen, hostname -I prints it"
_START = "sudo systemctl enable --now ssh starts ssh there"
_OTHER = "If it is one, look at nvidia-smi there; to try other hardware: -e preflight_require_gb10=false"
_FILES = {name: f"/etc/ssh/ssh_host_{name.lower()}_key.pub" for name in ("ED25519", "ECDSA", "RSA")}


def strangers(shown: Mapping[str, Judged]) -> str:
    """The refusal of machines whose host key ssh does not know; empty where it knows all."""
    left = {
        host: judgement
        for host, judgement in shown.items()
        if judgement.state in ("changed", "unknown") and not judgement.changed
    }
    if not left:
        return ""
    findings = []
    for host, judgement in left.items():
        if not judgement.fingerprint:
            found = f"ssh does not accept its host key, and the key could not be read: {judgement.complaint}"
            findings.append(Finding(host, found, "Try ssh by hand"))
            continue
        knows = f"another one: {_ANOTHER}" if judgement.state == "changed" else "none of it yet"
        forget = f"To forget the old one: {judgement.forget}" if judgement.state == "changed" else ""
        findings.append(
            Finding(host, f"it shows the host key {_key(judgement)}, and your computer knows {knows}", forget)
        )
    text = refusal(STRANGERS, findings)
    prints = dict.fromkeys(judgement.fingerprint for judgement in left.values() if judgement.fingerprint)
    if prints:
        text += (
            f"\n{_at_its_screen(left.values())}. If each prints the same as here, run again with"
            f" -e node_fingerprint={','.join(prints)}; if not, do not go on."
        )
    return text


def _key(one: Candidate | Judged) -> str:
    return f"{one.fingerprint} ({one.kind})"


def _at_its_screen(shown: Iterable[Candidate | Judged]) -> str:
    files = dict.fromkeys(_FILES.get(one.kind, "/etc/ssh/ssh_host_*_key.pub") for one in shown)
    return f"At the machine itself (screen and keyboard, not over ssh) run: ssh-keygen -lf {' or '.join(files)}"


def logins(context: Context) -> Iterator[Finding]:
    """``failures`` of ``context``: why a first login, or sudo after it, did not work."""
    for finding in check_reached(context):
        if not finding.remedy.startswith("Check ansible_user"):
            yield finding
            continue
        user = context.hosts.get(finding.host, {}).get("ansible_user") or "that ssh takes by itself"
        yield replace(
            finding,
            found=f"it refuses the login name {user} or the password",
            remedy="Try both at its screen, then give them again (the name: ansible_user of the inventory, or -u)",
        )


def asked(
    candidates: Sequence[Candidate],
    answers: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Judged],
    read: Mapping[str, Node],
    *,
    confirmed: Sequence[str],
    user: str,
    require_gb10: bool,
) -> list[Finding]:
    """Why machines that were named cannot be taken, all reasons at once. ``answers`` and ``known``: the results of
    ``node_info`` and ``host_key`` by address; ``read``: what can be used of the former. Where no host key is
    ``confirmed``, a machine that wants a password is no reason: none is sent.
    """
    findings: list[Finding] = []
    failures: dict[str, str] = {}
    others: dict[str, Node] = {}
    unseen = [one for one in confirmed if one not in {found.fingerprint for found in candidates}]
    for candidate in candidates:
        address = candidate.address
        finding = _silent(candidate)
        if finding is None and confirmed and not candidate.own:
            finding = _another(candidate, known.get(address) or Judged(), unseen or confirmed)
        if finding:
            findings.append(finding)
        elif confirmed and address not in read:
            answer = answers.get(address) or {}
            failures[address] = "it answers what cannot be used" if answer.get("node") else reason(answer)
        elif confirmed and require_gb10 and not read[address].machine.is_gb10:
            others[address] = read[address]
    hosts = {address: {"ansible_user": user} for address in failures}
    context = Context(frozenset(), hosts, nodes=others, failures=failures)
    findings += [*logins(context), *(replace(one, remedy=_OTHER) for one in check_gb10(context))]
    names = {
        candidate.address: f"{candidate.address} {strict.words(candidate.name)}".strip() for candidate in candidates
    }
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, host=""), []).append(names[finding.host])
    return [replace(finding, host=", ".join(hosts)) for finding, hosts in alike.items()]


def _silent(candidate: Candidate) -> Finding | None:
    if candidate.own or candidate.banner or candidate.interface or candidate.fingerprint:
        return None
    if not is_address(candidate.address):
        return Finding(
            candidate.address, "this computer knows no address of that name", f"Give its address. {_ADDRESS}"
        )
    remedy = f"Is it on, in the network of this computer, and is that its address? {_ADDRESS}; {_START}"
    return Finding(candidate.address, "it does not answer ssh", remedy)


def _another(candidate: Candidate, shown: Judged, confirmed: Sequence[str]) -> Finding | None:
    if not candidate.fingerprint:
        return Finding(candidate.address, "it answers ssh, and shows no host key that can be read", "Try ssh by hand")
    found, look = f"it shows the host key {_key(candidate)}, and", _at_its_screen([candidate])
    if not candidate.known_hosts:
        remedy = f"{look}. If it prints the same as here, confirm that one; if not, do not log in"
        return Finding(candidate.address, f"{found} you have confirmed {' and '.join(confirmed)}: {_ANOTHER}", remedy)
    if shown.state != "changed":
        return None
    remedy = f"{look}. If it prints the same as here, forget the old key and run again: {shown.forget}"
    return Finding(candidate.address, f"{found} your computer knows another one: {_ANOTHER}", remedy)
