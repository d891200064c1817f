# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Unit and environment of the chat page. The real program runs with them in tests/scenarios."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import run
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui import files, planners
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui.files import Gateway, Settings

DIGEST = f"ghcr.io/open-webui/open-webui@sha256:{'a' * 64}"
CONTAINER = Settings(image=DIGEST)
VENV = Settings(runtime="venv", image="x/y:v0.12.4")
GATEWAY = Gateway(8081)


def unit(settings, marks=""):
    made = files.make(settings, GATEWAY, marks)
    (text,) = (text for path, text in made.files.items() if path.endswith(".service"))
    return text


@pytest.mark.parametrize("settings", [CONTAINER, VENV])
def test_nobody_else_comes_in_and_no_secret_is_written(settings):
    made = files.make(settings, GATEWAY, "one")
    text = made.files[files.ENVIRONMENT]
    assert "\nWEBUI_AUTH=True\n" in text and "\nOFFLINE_MODE=True\n" in text and "\nENABLE_OLLAMA_API=False\n" in text
    assert "\nOPENAI_API_BASE_URLS=http://127.0.0.1:8081/v1\n" in text and "KEYS=" not in text and "SECRET" not in text
    service = unit(settings)
    assert "--host 127.0.0.1 --port 8080" in service
    assert "/etc/sparkmatrix/gateway/keys/web-ui.key" in service and "/etc/sparkmatrix/web-ui.key" in service
    # systemd replaces what has one dollar, before a shell sees it
    assert not re.search(r"(?<!\$)\$(?!\$)", service)
    assert f"SPARKMATRIX_CONFIG_HASH={made.hash}\n" in made.files["/etc/systemd/system/sparkmatrix-web-ui.service"]
    assert made.ask == "http://127.0.0.1:8080/health"


def test_it_starts_anew_with_keys_image_settings_and_nothing_else():
    hashes = {
        files.make(settings, gateway, marks).hash
        for settings, gateway, marks in (
            (CONTAINER, GATEWAY, "one"),
            (CONTAINER, GATEWAY, "two"),
            (replace(CONTAINER, signup="closed"), GATEWAY, "one"),
            (CONTAINER, Gateway(8082), "one"),
            (replace(CONTAINER, port=8090), GATEWAY, "one"),
        )
    }
    assert len(hashes) == 5
    assert files.make(CONTAINER, GATEWAY, "one").hash in hashes


def test_an_image_is_named_as_the_nodes_know_it_and_never_fetched_by_the_unit():
    assert f" ghcr.io/open-webui/open-webui:sha256-{'a' * 64} " in unit(CONTAINER)
    assert "--pull never" in unit(CONTAINER)
    known = f"sha256:{'b' * 64}"
    made = files.make(CONTAINER, GATEWAY, "", known)
    assert f" {known} " in made.files["/etc/systemd/system/sparkmatrix-web-ui.service"]


def test_no_tools_go_along_with_a_question():
    """An engine without a parser of calls refuses them. Quotes within a value stay, for systemd and for Docker."""
    line = 'DEFAULT_MODEL_PARAMS={"function_calling":"legacy"}'
    assert line in files.make(VENV, GATEWAY, "marks").files[files.ENVIRONMENT].splitlines()


def test_the_user_adds_variables_and_changes_none_that_are_fixed():
    mine = replace(VENV, environment={"ENABLE_PLUGINS": "True", "WEBUI_BANNERS": []})
    assert files.environment(mine, GATEWAY)["ENABLE_PLUGINS"] == "True"
    assert not list(files.check(mine))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"port": 80}, "web_ui_port is 80"),
        ({"runtime": "container", "image": ""}, "web_ui_image '' is no image"),
        ({"runtime": "container", "image": "x y"}, "is no image"),
        ({"image": "x/y:latest"}, "has no release in its tag"),
        ({"environment": {"WEBUI_AUTH": "False"}}, "web_ui_environment has 'WEBUI_AUTH'"),
        ({"environment": {"LD_PRELOAD": "/x"}}, "web_ui_environment has 'LD_PRELOAD'"),
        ({"environment": {"lower": "1"}}, "web_ui_environment has 'lower'"),
        ({"environment": {"OPENAI_API_KEYS": "abc"}}, "web_ui_environment has OPENAI_API_KEYS"),
        ({"environment": {"WEBUI_NAME": "a\nB=c"}}, "web_ui_environment has a value of WEBUI_NAME"),
    ],
)
def test_what_cannot_be_is_told(values, found):
    told = [finding.found for finding in files.check(replace(VENV, **values))]
    assert len(told) >= 1 and found in told[0]


def test_the_planner_takes_what_the_role_has():
    options = {"gateway_port": "8081", "runtime": "venv", "image": "x/y:v0.12.4", "port": "8090"}
    result = run("web_ui", planners.PLANNERS["web_ui"], options, {})
    assert result["unit"]["name"] == "sparkmatrix-web-ui.service" and result["ask"] == "http://127.0.0.1:8090/health"
    assert len(result["files"]) == 2
    for wrong, said in ({"port": 1}, "web_ui_port is 1"), ({"image_id": "x\nUser=root"}, "is no id of an image"):
        refused = run("web_ui", planners.PLANNERS["web_ui"], {**options, **wrong}, {})
        assert refused["failed"] and said in refused["msg"]
