# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.avahi import denied, denying
from hypothesis import given
from hypothesis import strategies as st

BEGIN, END = (f"# {mark} sparkmatrix.cluster fabric" for mark in ("BEGIN", "END"))
SHIPPED = "# See avahi-daemon.conf(5)\n\n[server]\n#host-name=foo\nuse-ipv4=yes\n\n[publish]\npublish-hinfo=no\n"


@pytest.mark.parametrize(
    ("before", "block", "after"),
    [
        ("[server]\n", "deny-interfaces=a,b\n", ""),
        (SHIPPED[: SHIPPED.index("#host")], "deny-interfaces=a,b\n", SHIPPED[SHIPPED.index("#host") :]),
        ("", "[server]\ndeny-interfaces=a,b\n", ""),
        ("[publish]\n", "[server]\ndeny-interfaces=a,b\n", ""),
    ],
)
def test_the_block_in_its_section(before: str, block: str, after: str) -> None:
    text = denying(before + after, ["a", "b"], "fabric")
    assert text == f"{before}{BEGIN}\n{block}{END}\n{after}"
    assert denied(text, "fabric") == ["a", "b"]


def test_what_the_owner_denies_stays_denied_and_comes_back() -> None:
    own = "[server]\nuse-ipv4=yes\nDeny-Interfaces = eth5, a\n[publish]\ndeny-interfaces=of-no-meaning\n"
    text = denying(own, ["a", "b"], "fabric")
    assert f"{BEGIN}\n#Deny-Interfaces = eth5, a\ndeny-interfaces=eth5,a,b\n{END}\n[publish]\n" in text
    assert denying(text, ["c"], "fabric").count("deny-interfaces=eth5,a,c\n") == 1
    assert denying(text, [], "fabric") == own


lines = st.lists(
    st.sampled_from(["[server]", "[publish]", "deny-interfaces=x", "#deny-interfaces=y", "", "use-ipv6=no"])
).map(lambda found: "".join(f"{line}\n" for line in found))
netdevs = st.lists(st.sampled_from(["a", "b", "x"]), min_size=1, unique=True)


@given(lines, netdevs, netdevs)
def test_it_comes_and_goes(text: str, first: list[str], second: list[str]) -> None:
    once = denying(text, first, "fabric")
    assert denying(once, first, "fabric") == once
    assert set(first) <= set(denied(once, "fabric"))
    assert denying(once, second, "fabric") == denying(text, second, "fabric")
    assert denying(once, [], "fabric") == text


def test_a_torn_block_is_named() -> None:
    with pytest.raises(SparkError, match="has no end"):
        denying(f"[server]\n{BEGIN}\n", [], "fabric")
    assert denied(f"{BEGIN}\ndeny-interfaces=a\n", "fabric") == []
