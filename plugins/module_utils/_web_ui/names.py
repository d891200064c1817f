# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Names and places of the chat page on the head, for all who deal with it."""

from __future__ import annotations

OWN_KEY = "web_ui_key"  # the set of files with its own key
UNIT = "sparkmatrix-web-ui.service"
USER = "sparkmatrix-web-ui"
CLIENT = "web-ui"  # who it is to the gateway
