# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which names of environment variables look like those of secrets."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    """True for HF_TOKEN and API_KEY, and not for names of files such as HF_TOKEN_PATH."""
    return bool(_SECRET.search(name))
