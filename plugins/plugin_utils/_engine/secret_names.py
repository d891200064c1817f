# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which variables and options look like secrets, by their names and by their values."""

from __future__ import annotations

import re

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.secret_rules import TOKENS

_NAME = re.compile(
    r"(?:^|_)(?:KEY|TOKEN|SECRETS?|CREDENTIALS?|PASS|PASSPHRASE|PAT|PSK|PW|AUTH|BEARER|JWT|COOKIE|WEBHOOK(?:_UR[LI])?)$"
    r"|PASSWORDS?$|PASSWD$|._?PWD$|APIKEYS?$|(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING|ENCRYPTION)_?(?:KEY|TOKEN)S?$",
    re.IGNORECASE,
)
# A login in an address (of a proxy also without its kind), a parameter of one, and a token.
_VALUE = re.compile(
    r"://[^\s/@:]*:[^\s/@]+@|https?://[^\s/@]+@|^[^\s/@:]+:[^\s/@]+@[\w.-]+(?::\d+)?/?$"
    r"|(?:password|passwd|pwd|token|secret|api[_-]?key|accesskey|accountkey|signature|sig)=[^\s&;]+"
    r"|(?:^|authorization[=:] *)(?:bearer|basic) +\S|(?:^|\s)(?:-u|--user)[ =]?[^\s:]+:\S|-----BEGIN [A-Z ]*PRIVATE KEY"
    rf"|(?:^|[\s,=:;])(?-i:{TOKENS})",
    re.IGNORECASE,
)
# In a command or the text of a shell: an option or a variable, and its value.
GIVEN = re.compile(
    r"(?<![\w-])(?:--([A-Za-z][\w-]*)(?:=|[ \t]+(?!-))|([A-Za-z_]\w*)=)(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)]+)"
)
_SWITCH = re.compile(r"|true|false|yes|no|on|off|none|[01]", re.IGNORECASE)


def looks_secret(name: str, value: str | None = None) -> bool:
    """True for HF_TOKEN, API_KEYS and a proxy with a login, and not for files such as HF_TOKEN_PATH, or switches."""
    if value is not None and _SWITCH.fullmatch(value):
        return False
    return bool(_NAME.search(name) or (value and _VALUE.search(value)))
