# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A run as JUnit's XML, for CI and monitoring: a test case per verdict. What was not measured is skipped, with the
reason; a warning passes, and says so in its output."""

from __future__ import annotations

from xml.etree import ElementTree

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    UNKNOWN,
    WARN,
    Run,
    Verdict,
    where,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import closing_lines


def text(run: Run) -> str:
    suite = ElementTree.Element(
        "testsuite",
        name=printable(f"sparkmatrix {run.playbook} {run.cluster}"),
        timestamp=printable(run.at),
        time=f"{run.seconds:.1f}",
        tests=str(len(run.verdicts)),
        failures=str(sum(verdict.outcome == FAIL for verdict in run.verdicts)),
        skipped=str(sum(verdict.outcome == UNKNOWN for verdict in run.verdicts)),
        errors="0",
    )
    for verdict in run.verdicts:
        _case(suite, verdict)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, verdict: Verdict) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"{verdict.scope}.{verdict.check}", name=printable(where(verdict)), time="0"
    )
    found = printable(verdict.found)
    evidence = printable("\n".join([closing_lines.said(verdict), *verdict.evidence]))
    if verdict.outcome == FAIL:
        ElementTree.SubElement(case, "failure", message=found, type=verdict.cause).text = evidence
    elif verdict.outcome == UNKNOWN:
        ElementTree.SubElement(case, "skipped", message=found)
    else:
        label = f"warning ({verdict.cause}): " if verdict.outcome == WARN else ""
        ElementTree.SubElement(case, "system-out").text = label + evidence
