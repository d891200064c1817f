# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a machine hands over: the secrets of every file that the product knows, none of which may be in it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import time
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
    "etc/sparkmatrix/web-ui.key": "plainly-of-the-chat-page",
    "etc/sparkmatrix/gateway/keys/alice.key": "# a comment\nplainly-alices-key\n",
    "etc/sparkmatrix/gateway/ca.key": PEM.format("plainlyBytesOfTheAuthority"),
    "run/sparkmatrix-gateway/tls.key": PEM.format("plainlyBytesOfTheCertificate"),
    "etc/sparkmatrix/ssh/id_ed25519": PEM.format("plainlyBytesOfTheNode"),
    "root/.docker/config.json": json.dumps({"auths": {"nvcr.io": {"auth": "cGxhaW5seS1yZWdpc3RyeQ=="}}}),
    "root/.cache/huggingface/token": "plainly-the-cached-token",
    "var/lib/sparkmatrix/home/.cache/huggingface/token": "MadeByTheHub0123456789",
    "srv/elsewhere/token": "plainly-the-token-elsewhere",
    "etc/sparkmatrix/engine.env": (
        'HF_TOKEN_PATH="/srv/elsewhere/token"\nMY_SECRET="plainly-of-the-user"\nNCCL_DEBUG="INFO"\n'
    ),
}
WORDS = [
    *("plainly-the-ray-token", "plainly-the-mpi-token", "plainly-the-hub-token", "plainly-the-engine-key"),
    *("plainly-alices-key", "plainlyBytesOfTheAuthority", "plainlyBytesOfTheCertificate", "plainlyBytesOfTheNode"),
    "plainly-of-the-chat-page",
    *("cGxhaW5seS1yZWdpc3RyeQ", "plainly-the-cached-token", "plainly-the-token-elsewhere", "plainly-of-the-user"),
    "MadeByTheHub0123456789",
]
EARLIER = "plainly-of-an-earlier-plan"


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
    kept.joinpath("state.json").write_text(json.dumps([{"reason": f"refused {word}"} for word in WORDS]))
    plans = tmp_path / "var/lib/sparkmatrix/plan"
    plans.mkdir()
    plans.joinpath("previous.json").write_text("{}")
    earlier = {"/etc/sparkmatrix/engine.env": 'MY_SECRET="plainly-of-an-earlier-plan"\n'}
    plans.joinpath("files-0123456789ab.json").write_text(json.dumps({"files": earlier}))
    verdicts = tmp_path / "var/lib/sparkmatrix/verdicts"
    verdicts.mkdir()
    for day in range(10, 20):
        (verdicts / f"202611{day}T000000Z-verify.json").write_text("{}")
    return tmp_path


def said(argv):
    """Every program prints every secret, between words of its own."""
    if argv[0] == "nvidia-smi":
        return Completed(127)
    return Completed(0, "\n".join(f"begin {word} end" for word in WORDS))


def test_no_secret_leaves_the_machine(node):
    redactor = Redactor()
    found = capture(Machine(str(node), said), redactor, logs=True)
    everything = json.dumps(found)
    assert [word for word in (*WORDS, EARLIER) if word in everything] == []
    assert not {f"/{name}" for name in PLANTED} - {"/etc/sparkmatrix/engine.env"} & set(found)
    assert 'NCCL_DEBUG="INFO"' in found["/etc/sparkmatrix/engine.env"]
    assert found["journal_engine"].count("(left out)") == len(WORDS)
    assert redactor.counts["secrets of the machine"] > len(WORDS)
    assert module.unpacked(module.pack(found)) == found


def test_what_is_there_is_taken_along(node):
    found = capture(Machine(str(node), said), Redactor(), logs=True)
    assert {"journal_keeper", "journal_nccl", "status", "unit_files"} <= set(found)
    assert {"/var/lib/sparkmatrix/keeper/state.json", "/var/lib/sparkmatrix/plan/previous.json"} <= set(found)
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
    found = capture(machine, Redactor())
    assert {name for name in found if not name.startswith("/sys")} == {"ip_link", "ip_addr"}
    assert found["/sys/class/net/enp1s0f0np0/carrier"] == "1"
    assert found["/sys/class/net/enp1s0f0np0/speed"] == "(not readable)"


def test_its_own_name_is_left_out_too(node):
    found = capture(
        Machine(str(node), lambda _argv: Completed(0, "desk-7.lan up")), Redactor(anonymous=True), name="spark1"
    )
    assert set(found["ip_link"].split()) == {"spark1", "up"}


def test_people_with_an_account_are_left_out_too(node):
    (node / "etc/passwd").write_text(
        "root:x:0:0:root:/root:x\nalice:x:1000:1000:Alice Smith,,,:/home/alice:x\nsparkmatrix:x:997:997::/:x\nbroken\n"
    )
    words = "alice and Alice Smith and bob and sparkmatrix and root"
    machine = Machine(str(node), lambda _argv: Completed(0, words), environment={"SUDO_USER": "bob"})
    found = capture(machine, Redactor(anonymous=True), name="spark1")["ip_link"]
    assert re.fullmatch(r"(user\d+) and (user\d+) and (user\d+) and sparkmatrix and root", found)
    assert capture(machine, Redactor())["ip_link"] == words


def test_names_that_it_had_before_are_left_out_too(node):
    def run(argv):
        earlier = argv[-1] == "_HOSTNAME"
        return Completed(0, "localhost\nspark-1a2b.lan\nno name\n" if earlier else "spark-1a2b and localhost")

    found = capture(Machine(str(node), run), Redactor(anonymous=True), name="spark1")
    assert found["ip_link"] == "spark1 and localhost"


RAY = "var/lib/sparkmatrix/home/ray"


def test_logs_of_ray_follow_no_link_and_wait_for_nothing(node):
    logs = node / RAY / "session_1/logs"
    logs.mkdir(parents=True)
    (node / RAY / "session_latest").symlink_to("/path/in/the/container/session_1")
    (logs / "raylet.out").write_text("raylet of desk-7\n")
    (logs / "long.out").write_text("x" * module.MOST + "end")
    (logs / "empty.err").write_text("")
    (logs / "worker.err").symlink_to("/etc/shadow")
    os.mkfifo(logs / "pipe.err")
    folder = f"/{RAY}/session_latest/logs"
    found = module.ray_logs(Machine(str(node), said))
    assert set(found) == {f"{folder}/raylet.out", f"{folder}/long.out"}
    assert len(found[f"{folder}/long.out"]) == module.MOST and found[f"{folder}/long.out"].endswith("end")


@pytest.mark.parametrize("link", [f"{RAY}/session_1/logs", f"{RAY}/session_1", RAY])
def test_no_directory_of_the_service_user_leads_root_elsewhere(node, link):
    """Its owner was asked of where the link led: of a directory of root's it was root who read."""
    (node / RAY / "session_1/logs").mkdir(parents=True)
    (node / RAY / "session_latest").symlink_to("session_1")
    elsewhere = node / "etc/elsewhere" / f"{RAY}/session_1/logs".removeprefix(link).strip("/")
    elsewhere.mkdir(parents=True)
    (elsewhere / "shadow").write_text("root:hash:1:::")
    shutil.rmtree(node / link)
    (node / link).symlink_to(node / "etc/elsewhere")
    (node / "etc/elsewhere/session_latest").symlink_to("session_1")
    assert module.ray_logs(Machine(str(node), said)) == {}


def test_a_file_that_is_exchanged_while_it_is_read_is_left_out(node, monkeypatch):
    logs = node / RAY / "session_latest/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").symlink_to(node / "etc/sparkmatrix/ray.token")
    monkeypatch.setattr(module, "_newest", lambda _logs: ["raylet.out", "gone.out"])
    assert module.ray_logs(Machine(str(node), said)) == {}


# What whoever writes a log, or owns the engine's home, would have everybody leave out.
TRACE = "CUDA-error:out-of-memory"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{RAY}/session_latest/logs/a.env", f"MY_KEY={TRACE}\n"),
        (f"{RAY}/session_latest/logs/a.log", "KEY_FILE=/srv/mine\nTOKEN_PATH=/srv/*\n  A_TOKEN_PATH=/srv/mine\n"),
        ("var/lib/sparkmatrix/home/.netrc", f"{TRACE}\nmy_key = {TRACE}\n"),
        ("var/lib/sparkmatrix/home/.docker/config.json", json.dumps({"auth": TRACE})),
        ("var/lib/sparkmatrix/home/.cache/huggingface/token", TRACE),
    ],
)
def test_nobody_has_his_traces_left_out(node, path, text):
    (node / "srv/mine").write_text(f"{TRACE}\n")
    (node / path).parent.mkdir(parents=True, exist_ok=True)
    (node / path).write_text(text)
    journal = Completed(0, f"{text}\nbegin {TRACE} end")
    machine = Machine(str(node), lambda argv: journal if argv[0] == "journalctl" else Completed(0))
    found = capture(machine, Redactor(), logs=True)
    assert f"begin {TRACE} end" in found["journal_engine"]


def test_nobody_else_speaks_as_our_programs():
    """Everybody may write to the journal under any name (logger -t): five hundred such lines hid all of ours."""
    assert "_UID=0" in module.LOGS["journal_ours"]


def test_no_journal_of_a_program_of_others_is_read():
    """Of all units there would be what sudo, cron and people's own services say."""
    for name, argv in {**module.TOOLS, **module.LOGS}.items():
        told = [word for word in argv if word in ("-u", "-t", "-k", "_TRANSPORT=kernel", "--list-boots")]
        assert argv[0] != "journalctl" or told, name
    units = {unit for argv in module.LOGS.values() for flag, unit in zip(argv, argv[1:]) if flag == "-u"}
    assert not [unit for unit in units if unit.startswith(("user", "session", "cron", "sudo", "*"))]


def test_of_a_file_of_others_that_settings_name_only_what_was_made_is_believed(node):
    token = node / "srv/elsewhere/token"
    token.write_text(f"MadeBySomebody0123456789\n{TRACE}\n")
    os.chmod(token, 0o666)
    values = module.secrets(Machine(str(node)))
    assert "MadeBySomebody0123456789" in values and TRACE not in values
    token.unlink()
    os.mkfifo(token)
    assert "MadeBySomebody0123456789" not in module.secrets(Machine(str(node)))


def test_a_file_of_the_engine_s_user_teaches_few_words_and_soon(node):
    path = node / "var/lib/sparkmatrix/home/.netrc"
    path.write_text("".join(f"MadeBySomebody{number}\n" for number in range(3000)) + "\n" * 30000)
    began = time.process_time()
    assert sum(value.startswith("MadeBySomebody") for value in module.secrets(Machine(str(node)))) <= module.MAX_MADE
    assert time.process_time() - began < 2


def test_long_logs_of_ray_leave_all_else_there(node, monkeypatch):
    monkeypatch.setattr(module, "MAX_ALL", 3 * module.MOST)
    logs = node / RAY / "session_latest/logs"
    logs.mkdir(parents=True)
    for number in range(5):
        (logs / f"{number}.out").write_text("x " * module.MOST)
    found = capture(Machine(str(node), said), Redactor(), logs=True)
    assert found["journal_keeper"].startswith("begin") and found["units"].startswith("begin")


def test_signs_of_any_language_fit_into_what_the_controller_reads():
    """All that a machine may hand over, of signs that are longest in JSON."""
    found = module.pack({"x": "\N{ROCKET}" * 1000})
    assert len(zlib.decompress(base64.b64decode(found))) <= 4 * 1000 + 20


def test_a_log_without_end_leaves_its_last_lines_and_all_of_them_together_have_an_end(node, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1000)
    monkeypatch.setattr(module, "MAX_ALL", 5000)
    many = "\n".join(f"line {number}" for number in range(1000))
    found = capture(Machine(str(node), lambda _argv: Completed(0, many)), Redactor(), logs=True)
    assert found["boots"].startswith("(the first ") and found["boots"].endswith("line 999")
    assert sum(map(len, found.values())) < 5000 + 60 * len(found)
