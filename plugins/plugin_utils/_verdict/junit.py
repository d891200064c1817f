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
        failures=str(sum(one.outcome == FAIL for one in run.verdicts)),
        skipped=str(sum(one.outcome == UNKNOWN for one in run.verdicts)),
        errors="0",
    )
    for one in run.verdicts:
        _case(suite, one)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, one: Verdict) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"{one.scope}.{one.check}", name=printable(where(one)), time="0"
    )
    found = printable(one.found)
    evidence = printable("\n".join([closing_lines.said(one), *one.evidence]))
    if one.outcome == FAIL:
        ElementTree.SubElement(case, "failure", message=found, type=one.cause).text = evidence
    elif one.outcome == UNKNOWN:
        ElementTree.SubElement(case, "skipped", message=found)
    else:
        label = f"warning ({one.cause}): " if one.outcome == WARN else ""
        ElementTree.SubElement(case, "system-out").text = label + evidence
