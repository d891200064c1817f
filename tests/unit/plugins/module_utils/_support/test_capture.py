# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a machine hands over: the secrets of every file that the product knows, none of which may be in it."""

from __future__ import annotations

import base64
import json
import os
import zlib

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support import capture as module
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import capture
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.redaction import Redactor

PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
# Words without a look of their own: only their place says that they are secrets.
PLANTED = {
    "etc/sparkmatrix/ray.token": "plainly-the-ray-token",
    "etc/sparkmatrix/mpi.token": "plainly-the-mpi-token",
    "etc/sparkmatrix/hf.token": "plainly-the-hub-token",
    "etc/sparkmatrix/engine-key.env": 'VLLM_API_KEY="plainly-the-engine-key"\n',
    "etc/sparkmatrix/gateway/keys/alice.key": "# a comment\nplainly-alices-key\n",
    "etc/sparkmatrix/gateway/ca.key": PEM.format("plainlyBytesOfTheAuthority"),
    "run/sparkmatrix-gateway/tls.key": PEM.format("plainlyBytesOfTheCertificate"),
    "etc/sparkmatrix/ssh/id_ed25519": PEM.format("plainlyBytesOfTheNode"),
    "root/.docker/config.json": json.dumps({"auths": {"nvcr.io": {"auth": "cGxhaW5seS1yZWdpc3RyeQ=="}}}),
    "var/lib/sparkmatrix/home/.cache/huggingface/token": "plainly-the-cached-token",
    "srv/elsewhere/token": "plainly-the-token-elsewhere",
    "etc/sparkmatrix/engine.env": (
        'HF_TOKEN_PATH="/srv/elsewhere/token"\nMY_SECRET="plainly-of-the-user"\nNCCL_DEBUG="INFO"\n'
    ),
}
WORDS = [
    *("plainly-the-ray-token", "plainly-the-mpi-token", "plainly-the-hub-token", "plainly-the-engine-key"),
    *("plainly-alices-key", "plainlyBytesOfTheAuthority", "plainlyBytesOfTheCertificate", "plainlyBytesOfTheNode"),
    *("cGxhaW5seS1yZWdpc3RyeQ", "plainly-the-cached-token", "plainly-the-token-elsewhere", "plainly-of-the-user"),
]


@pytest.fixture
def node(tmp_path):
    for name, text in PLANTED.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("desk-7\n")
    kept = tmp_path / "var/lib/sparkmatrix/keeper"
    kept.mkdir(parents=True)
    kept.joinpath("history.json").write_text(json.dumps([{"reason": f"refused {word}"} for word in WORDS]))
    verdicts = tmp_path / "var/lib/sparkmatrix/verdicts"
    verdicts.mkdir()
    for day in range(10, 20):
        (verdicts / f"202611{day}T000000Z-verify.json").write_text("{}")
    return tmp_path


def said(argv):
    """Every program prints every secret, between words of its own."""
    if argv[0] == "nvidia-smi":
        return Completed(127)
    if argv[:2] == ["tail", "-c"]:
        return Completed(0, "raylet of desk-7\n")
    return Completed(0, "\n".join(f"begin {word} end" for word in WORDS))


def test_no_secret_leaves_the_machine(node):
    found = capture(Machine(str(node), said), Redactor(), logs=True)
    everything = json.dumps(found.outputs)
    assert [word for word in WORDS if word in everything] == []
    assert not {f"/{name}" for name in PLANTED} - {"/etc/sparkmatrix/engine.env"} & set(found.outputs)
    assert 'NCCL_DEBUG="INFO"' in found.outputs["/etc/sparkmatrix/engine.env"]
    assert found.outputs["journal_engine"].count("(left out)") == len(WORDS)
    assert found.counts["secrets of the machine"] > len(WORDS)
    unpacked = json.loads(zlib.decompress(base64.b64decode(found.packed())))
    assert unpacked == found.outputs


def test_what_is_there_is_taken_along(node):
    found = capture(Machine(str(node), said), Redactor(), logs=True).outputs
    assert {"journal_keeper", "journal_nccl", "status", "unit_files"} <= set(found)
    assert "/var/lib/sparkmatrix/keeper/history.json" in found
    assert sum("/verdicts/" in name for name in found) == module.VERDICTS
    assert "/var/lib/sparkmatrix/verdicts/20261119T000000Z-verify.json" in found
    assert "nvidia_smi" not in found  # it is not installed


def test_without_logs_it_is_what_tools_print(tmp_path):
    port = tmp_path / "sys/class/net/enp1s0f0np0"
    (port / "device").mkdir(parents=True)
    (port / "device/vendor").write_text("0x15b3\n")
    (port / "carrier").write_text("1\n")
    (tmp_path / "sys/class/net/lo").mkdir()
    machine = Machine(str(tmp_path), lambda argv: Completed(0, "x") if argv[0] == "ip" else Completed(127))
    found = capture(machine, Redactor()).outputs
    assert {name for name in found if not name.startswith("/sys")} == {"ip_link", "ip_addr"}
    assert found["/sys/class/net/enp1s0f0np0/carrier"] == "1"
    assert found["/sys/class/net/enp1s0f0np0/speed"] == "(not readable)"


def test_its_own_name_is_left_out_too(node):
    found = capture(
        Machine(str(node), lambda _argv: Completed(0, "desk-7.lan up")), Redactor(anonymous=True), name="spark1"
    )
    assert set(found.outputs["ip_link"].split()) == {"spark1", "up"}


def test_names_that_it_had_before_are_left_out_too(node):
    def run(argv):
        earlier = argv[-1] == "_HOSTNAME"
        return Completed(0, "localhost\nspark-1a2b.lan\nno name\n" if earlier else "spark-1a2b and localhost")

    found = capture(Machine(str(node), run), Redactor(anonymous=True), name="spark1")
    assert found.outputs["ip_link"] == "spark1 and localhost"


def test_logs_of_ray_are_read_as_their_owner_and_no_link_is_followed(node, monkeypatch):
    logs = node / "var/lib/sparkmatrix/home/ray/session_latest/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("x")
    (logs / "empty.err").write_text("")
    os.symlink("/etc/shadow", logs / "worker.err")
    asked = []

    def run(argv):
        asked.append(list(argv))
        return Completed(0, "raylet of desk-7\n")

    monkeypatch.setattr(module.pwd, "getpwuid", lambda _uid: type("account", (), {"pw_name": "sparkmatrix"}))
    found = module.ray_logs(Machine(str(node), run))
    assert found == {"/var/lib/sparkmatrix/home/ray/session_latest/logs/raylet.out": "raylet of desk-7\n"}
    (argv,) = asked
    assert argv[:3] == ["runuser", "--user=sparkmatrix", "--"] and argv[-1].endswith("logs/raylet.out")


def test_a_log_without_end_leaves_its_last_lines_and_all_of_them_together_have_an_end(node, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1000)
    monkeypatch.setattr(module, "MOST_ALL", 5000)
    many = "\n".join(f"line {number}" for number in range(1000))
    found = capture(Machine(str(node), lambda _argv: Completed(0, many)), Redactor(), logs=True).outputs
    assert found["boots"].startswith("(the first ") and found["boots"].endswith("line 999")
    assert sum(map(len, found.values())) < 5000 + 60 * len(found)
