# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import ansible_options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", ""),
        ("-e a=b --tags fabric,nccl --limit spark2 --check --diff -vvv -K -u me", ""),
        ("--limt spark2", "There is no option --limt. Did you mean --limit?"),
        ("--zzzz", "There is no option --zzzz."),
        ("-v spark2", "What is spark2 for? For some machines only: --limit spark2"),
        ("spark2 -v", "What is spark2 for? For some machines only: --limit spark2"),
        ("-v -e", "argument -e/--extra-vars: expected one argument."),
    ],
)
def test_a_wrong_option_is_told_in_a_line(options: str, said: str) -> None:
    assert ansible_options.refused(options.split(), ["--own"]) == said
