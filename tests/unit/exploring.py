# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether all of the largest tables is tried, as in the step `unit-explore` of `make test-full`, or a part of them."""

from __future__ import annotations

import os

EXPLORE = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
