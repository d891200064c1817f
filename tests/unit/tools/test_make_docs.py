# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""docs/ is as the code says."""

from __future__ import annotations

import make_docs
import pytest


@pytest.mark.parametrize("name", make_docs.PAGES)
def test_a_page_is_that_of_the_code(name):
    text = (make_docs.ROOT / name).read_text()
    assert text == make_docs.PAGES[name](text), "run make docs"
