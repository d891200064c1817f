# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import json
import pathlib
import shlex
import subprocess
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen.commands import Commands
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import summary
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status.summary import (
    Layer,
    Login,
    Run,
    Service,
    Start,
    Way,
)

ROOT = pathlib.Path(__file__).resolve().parents[5]
COMMANDS = Commands(".venv/bin/ansible-playbook", "", "-i inventories/mine", ("site", "verify", "reset", "status"))
HEAD = Login("spark1", "nvidia@10.0.0.11")
SERVICE = Service("qwen3-235b", "generate", "vLLM on 4 nodes, context 32768 x 8 requests", 12.0, 41.0, 23.4)
GATEWAY = Way("https://10.0.0.11:8443/v1", "/etc/sparkmatrix/gateway/keys/default.key", own_ca=True)
LOOPBACK = Way("http://127.0.0.1:8000/v1", "/etc/sparkmatrix/engine-key.env", private=True)
START = Start("qwen3-235b", {"stop": 3.0, "other": 2.0})
NODES = ("spark1", "spark2", "spark3", "spark4")
LAYERS = (
    Layer("access", "", NODES),
    Layer("os_stabilization", "a reboot is due on 1", ("spark2",)),
    Layer("fabric", "switch 200 Gb/s MTU 9000 24 of 24 pings"),
    Layer("ray", "4 of 4 nodes"),
    Layer("engine", "first token after 212 s", ("spark1",)),
    Layer("gateway", "1 key"),
    Layer("verify", "23.4 tokens/s"),
)
SITE = Run("site", NODES, HEAD, COMMANDS, layers=LAYERS, services=(SERVICE,), way=GATEWAY)


def test_a_first_run_ends_with_all_that_is_needed_to_use_it():
    assert summary.lines(SITE) == [
        "site.yml: 4 nodes serve qwen3-235b",
        "layers    access ok, os_stabilization ok (a reboot is due on 1),"
        " fabric ok (switch 200 Gb/s MTU 9000 24 of 24 pings), ray ok (4 of 4 nodes),"
        " engine ok (first token after 212 s), gateway ok (1 key), verify ok (23.4 tokens/s)",
        "model     qwen3-235b, vLLM on 4 nodes, context 32768 x 8 requests",
        "speed     23.4 tokens/s for one stream; the plan expects 12 to 41",
        "URL       https://10.0.0.11:8443/v1",
        "key       KEY=$(ssh nvidia@10.0.0.11 'sudo cat /etc/sparkmatrix/gateway/keys/default.key');"
        " ssh nvidia@10.0.0.11 'sudo cat /etc/sparkmatrix/gateway/tls/ca.crt' > sparkmatrix-ca.crt",
        "try it    curl --cacert sparkmatrix-ca.crt https://10.0.0.11:8443/v1/chat/completions"
        " -H 'Content-Type: application/json' -H \"Authorization: Bearer $KEY\""
        ' -d \'{"model": "qwen3-235b", "messages": [{"role": "user", "content": "Hello"}]}\'',
        "changed   access on all 4 nodes; os_stabilization on spark2; engine on spark1",
        "next      .venv/bin/ansible-playbook status.yml -i inventories/mine  (how it is, at any time)",
        "undo      .venv/bin/ansible-playbook reset.yml -i inventories/mine",
    ]


def line(run, label):
    return [text[10:] for text in summary.lines(run) if text.startswith(f"{label:<10}")]


def test_one_layer_says_what_is_left_to_run():
    run = replace(SITE, playbook="fabric", tags=("fabric",), layers=LAYERS[2:3], services=(), way=None)
    assert summary.lines(run) == [
        "fabric.yml --tags fabric: done on 4 nodes",
        "layers    fabric ok (switch 200 Gb/s MTU 9000 24 of 24 pings)",
        "changed   nothing",
        "next      .venv/bin/ansible-playbook site.yml -i inventories/mine  (all layers)",
        "undo      .venv/bin/ansible-playbook reset.yml -i inventories/mine --tags fabric",
    ]


def test_check_mode_says_what_would_change():
    found = summary.lines(replace(SITE, check=True))
    assert found[0] == "site.yml --check: this is what it would do on 4 nodes; nothing was changed"
    assert line(replace(SITE, check=True), "changes") == [
        "access on all 4 nodes; os_stabilization on spark2; engine on spark1"
    ]
    assert line(replace(SITE, check=True), "next") == ["the same command without --check"]
    assert not line(replace(SITE, check=True), "undo")


@pytest.mark.parametrize(
    ("playbook", "following", "undo"),
    [
        ("stop", "playbooks/start.yml", "playbooks/start.yml"),
        ("start", "verify.yml", "playbooks/stop.yml"),
        ("restart", "verify.yml", ""),
        ("upgrade", "verify.yml", "playbooks/rollback.yml"),
        ("rollback", "verify.yml", "playbooks/rollback.yml"),
        ("node_add", "status.yml", "playbooks/node_remove.yml"),
        ("node_remove", "status.yml", "playbooks/node_add.yml"),
        ("verify", "status.yml", ""),
        ("reset", "", "site.yml"),
    ],
)
def test_every_playbook_names_what_comes_next_and_the_way_back(playbook, following, undo):
    run = replace(SITE, playbook=playbook, services=() if playbook in ("stop", "reset") else (SERVICE,))
    assert [text for text in line(run, "next") if following and following in text] or not following
    assert line(run, "undo") == ([f".venv/bin/ansible-playbook {undo} -i inventories/mine"] if undo else [])


def test_after_a_stop_it_says_that_the_port_stays_closed():
    stopped = replace(SITE, playbook="stop", services=())
    (text,) = line(stopped, "port")
    assert text.endswith("until: .venv/bin/ansible-playbook reset.yml -i inventories/mine --tags ray,engine")
    assert not line(replace(stopped, filtered=False), "port") and not line(SITE, "port")


def test_every_named_playbook_is_there():
    commands = Commands(top=COMMANDS.top)
    for name in {*summary.UNDO, *summary.UNDO.values(), *summary.NO_UNDO, "site", "reset", "verify", "start", "status"}:
        assert (ROOT / commands.play(name).split()[1]).is_file()


def test_a_machine_that_has_left_is_still_in_the_inventory():
    run = replace(SITE, playbook="node_remove", leaving=("spark5",))
    assert line(run, "next")[0] == "delete spark5 from the group sparks_leaving of the inventory"


def test_the_inventory_has_to_be_set_back_after_a_rollback():
    assert "set the inventory back" in line(replace(SITE, playbook="rollback"), "next")[0]


def test_whoever_has_the_command_needs_no_tunnel_and_no_key():
    run = replace(SITE, way=LOOPBACK, commands=Commands("sparkmatrix -i two", by_verbs=True))
    assert line(run, "URL") == ["http://127.0.0.1:8000/v1  (on spark1 only)"] and not line(run, "key")
    assert line(run, "ask it") == ['sparkmatrix -i two ask "…"']
    assert line(run, "programs")[0].startswith('eval "$(sparkmatrix -i two env)"')


def test_without_a_gateway_the_way_is_a_tunnel():
    run = replace(SITE, way=LOOPBACK)
    assert line(run, "URL") == [
        "http://127.0.0.1:8000/v1  (on spark1 only; from here first: ssh -fNL 8000:127.0.0.1:8000 nvidia@10.0.0.11)"
    ]
    assert line(run, "key") == ["KEY=$(ssh nvidia@10.0.0.11 'sudo cut -d\\\" -f2 /etc/sparkmatrix/engine-key.env')"]
    jump = replace(run, head=Login("spark1", "nvidia@10.0.0.11", 0, ("ProxyJump", "me@bastion.example")))
    assert "ssh -J me@bastion.example -fNL 8000:127.0.0.1:8000 nvidia@10.0.0.11)" in line(jump, "URL")[0]
    assert line(jump, "key")[0].startswith("KEY=$(ssh -J me@bastion.example nvidia@10.0.0.11 'sudo cut")
    here = replace(run, head=Login("spark1"))
    assert line(here, "URL") == ["http://127.0.0.1:8000/v1"]
    assert line(here, "key") == ['KEY=$(sudo cut -d\\" -f2 /etc/sparkmatrix/engine-key.env)']


def test_the_key_is_what_is_between_the_quotes(tmp_path):
    """The command as a shell runs it, on a file as the engine layer writes it."""
    (tmp_path / "key.env").write_text('VLLM_API_KEY="sk-12"\n')
    (command,) = line(replace(SITE, head=Login("spark1"), way=replace(LOOPBACK, key_file=f"{tmp_path}/key.env")), "key")
    script = f'sudo() {{ "$@"; }}; {command}; printf %s "$KEY"'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "sk-12"


@pytest.mark.parametrize(("task", "field"), [("generate", "messages"), ("embed", "input"), ("rank", "documents")])
def test_the_call_fits_the_task(task, field):
    words = shlex.split(summary.curl(replace(SERVICE, task=task), GATEWAY))
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "qwen3-235b"
    assert field in body
    assert f"8443{api_paths.PROBED[task]}" in " ".join(words)


@pytest.mark.parametrize(
    ("measured", "high", "says"),
    [
        (23.4, 41.0, "23.4 tokens/s for one stream; the plan expects 12 to 41"),
        (3.0, 41.0, "3.0 tokens/s for one stream; the plan expects 12 to 41: slower than expected"),
        (3.0, 0.0, "3.0 tokens/s for one stream; the plan has no expectation"),
    ],
)
def test_the_speed_is_compared_with_the_plan(measured, high, says):
    assert line(replace(SITE, services=(replace(SERVICE, measured=measured, high=high),)), "speed") == [says]


def test_each_of_several_starts_has_its_name():
    services = (replace(SERVICE, measured=None),) * 2
    run = replace(SITE, playbook="restart", services=services, starts=(START, replace(START, model="b")))
    (text,) = line(run, "start")
    assert text.startswith("qwen3-235b: 5 s: stop 3 s, ") and "; b: 5 s: " in text


def test_it_is_a_screen_whatever_ran():
    options = {
        "playbook": ("site", "node_remove", "rollback", "verify", "os_update"),
        "way": (GATEWAY, LOOPBACK),
        "reboot": ((), ("spark1",)),
        "leaving": ((), ("spark5",)),
        "services": ((SERVICE,), (SERVICE,) * 4, (replace(SERVICE, measured=None),)),
        "check": (False, True),
        "starts": ((), (START,) * 4),
    }
    for values in itertools.product(*options.values()):
        assert len(summary.lines(replace(SITE, **dict(zip(options, values, strict=True))))) <= summary.MAX_LINES


def test_machines_that_failed_are_named():
    run = replace(SITE, playbook="reset", failed=("spark4",), layers=(), services=(), way=None)
    assert summary.lines(run)[:2] == [
        "reset.yml: undone on 3 nodes",
        "not on    spark4: see the error above; run the playbook again",
    ]
