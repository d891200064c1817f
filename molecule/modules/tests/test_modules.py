# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json


def test_the_tool_shows_what_the_module_set(host):
    assert "26:3" in host.check_output("dcb -N app show dev enp1s0f0np0").split()
    shown = json.loads(host.check_output("dcb -j pfc show dev enp1s0f0np0"))
    assert [index for index, on in enumerate(shown["prio_pfc"]) if on] == [3]


def test_the_link_came_back_after_the_bounce(host):
    assert host.file("/sys/class/net/enp1s0f0np0/carrier").content_string.strip() == "1"
    assert host.file("/sys/class/infiniband/rocep1s0f0/ports/1/state").content_string.strip() == "4: ACTIVE"
