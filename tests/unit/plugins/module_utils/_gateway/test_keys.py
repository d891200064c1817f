# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Keys as nginx compares them."""

from __future__ import annotations

import re

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import keys as g
from hypothesis import given
from hypothesis import strategies as st


@given(st.text(alphabet="abcXYZ019._~+/=-", min_size=16, max_size=60), st.text(min_size=0, max_size=60))
def test_a_key_matches_itself_and_nothing_else(key, other):
    line = re.search(r'"~(.*)" alice;', g.clients_conf({"alice": key}))
    assert line
    assert re.search(line[1], f"Bearer {key}")
    assert bool(re.search(line[1], f"Bearer {other}")) == (other == key) or other == f"{key}\n"


def test_a_key_that_is_not_there_yet_opens_nothing():
    assert "alice" not in g.clients_conf({"alice": ""})
