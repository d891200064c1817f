# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

from planning import plan

SETTINGS = {"listen": ["lo"], "engines": [{"name": "chat", "model": "tiny"}], "port": "443"}
KEY = "abcdefghijklmnop"


def test_it_is_rendered_and_says_no_key():
    made = plan("gateway", settings={**SETTINGS, "keys": [{"name": "a", "key": KEY}]})["request"]
    assert any("nginx.conf" in path for path in made["rendered"])
    assert (made["settings"]["port"], made["settings"]["keys"]) == (443, [{"name": "a"}])
    assert KEY not in json.dumps(made)


def test_settings_that_cannot_work_are_refused_all_at_once():
    text = plan("gateway", settings={**SETTINGS, "port": "0", "paths": ["/metrics"]})["msg"]
    assert "gateway_port" in text and "gateway_paths" in text


def test_rules_are_those_of_where_it_listens():
    def rules(port, **more):
        answer = {"changed": False, "ports": [{"address": "127.0.0.1", "port": port}]}
        return plan("gateway_rules", {"gateway": {"spark1": answer}}, settings={**SETTINGS, **more})

    assert list(rules(8081)["rules"]) == ["spark1"]
    text = rules(8081)["rules"]["spark1"]
    assert "daddr { 127.0.0.1 } tcp dport { 8081 } goto refused" in text
    assert "tcp dport 443 add @ip_clients { ip saddr ct count over 512 }" in text
    assert "ct count" not in rules(8081, keys_per_address="0")["rules"]["spark1"]
    assert "spark1" in rules("8081 } accept")["msg"]
