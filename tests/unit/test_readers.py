# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every reader of what a tool, a file or another machine says, with damaged input: an answer, or its own refusal.

Made of true output, since what is nearly right is read wrong most easily. `make fuzz` looks for ten minutes.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins import module_utils as node_side
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.talk import parse_have
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access.membership import parse_known_hosts
from engine_plans import PLAN
from hypothesis import given, note
from hypothesis import strategies as st
from model_manifest import manifest
from preflight_inputs import fact
from report_samples import healthy

FIXTURES = Path(__file__).parent / "fixtures"
BASE = node_side.__name__
MAC, KEY = "4c:bb:47:00:00:01", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample"
TCP = (
    "  sl  local_address rem_address   st\n   0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 0 0 0 4711 1 0 100 0 0 10 0\n"
)
HELP = "usage: vllm serve [-h]\n  --model MODEL   see --other\n  -tp N, --tensor-parallel-size N\n"
GRUB = "submenu 'Advanced' $menuentry_id_option 'gnulinux-advanced-1' {\n\tmenuentry 'Linux 6.14.0-1013-nvidia'"
GRUB += " $menuentry_id_option 'gnulinux-6.14.0-1013-nvidia-advanced-1' {\n\t}\n}\n"
BLOCK = "# BEGIN sparkmatrix.cluster x\n%s\n# END sparkmatrix.cluster x\n"
REPORT = Report({"a.service": UnitReport("active", "active")}, "boot").text()
AER = "mlx5_core 0000:01:00.0: AER: Uncorrected (Fatal) error\n"
SWAPS = "Filename Type Size Used Priority\n/swap\\040a file 8388 0 -2\n"
ADDRESSES = [{"ifname": "enp1s0f0np0", "address": MAC, "mtu": 9000, "flags": ["UP", "LOWER_UP"], "operstate": "UP",
              "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"}]}]  # fmt: skip
ROUTES = [{"dst": "default", "gateway": "10.0.0.254", "dev": "enP7s7", "metric": 100, "flags": []}]
RULES = [{"priority": 0, "src": "all", "table": "local"}, {"priority": 32766, "src": "all", "table": "main"}]
NETPLAN = "network:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n      addresses: [10.0.0.1/24]\n      mtu: 9000\n"
RECORD = {"schema": 1, "interfaces": {"enp1s0f0np0": {"trust": "dscp", "pfc": [0] * 8, "dscp2prio": {"26": 3}}}}
UNITS = "Id=a.service\nActiveState=active\nMainPID=7\nListen=[::]:22 (Stream)\n\nId=b.service\nActiveState=failed\n"


def fixtures(folder: str) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((FIXTURES / folder).iterdir())]


@dataclass(frozen=True)
class Reader:
    read: Callable[[Any], Any]
    true: tuple[Any, ...]  # what it understands
    refuses: tuple[type[Exception], ...] = (SparkError,)


def here(name: str) -> Any:
    """``_room/file:function`` of module_utils."""
    file, _colon, function = name.partition(":")
    return getattr(import_module(f"{BASE}.{file.replace('/', '.')}"), function)


def reader(name: str, *true: Any, refuses: tuple[type[Exception], ...] = (SparkError,), **more: Any) -> Reader:
    function = here(name)
    return Reader(lambda value: function(value, **more), true, refuses)


WRONG = (ValueError, TypeError)
TEXTS: dict[str, Reader] = {}


def text(name: str, *true: str, refuses: tuple[type[Exception], ...] = (), **more: Any) -> None:
    TEXTS[name] = reader(name, *true, refuses=refuses, **more)


text("_access/fail2ban:parse_ignored", "`- 127.0.0.0/8\n   10.0.0.1\n")
text("_access/discover:parse_avahi", "=;enP7s7;IPv4;spark1;_ssh._tcp;local;spark1.local;10.0.0.1;22;\n")
text("_access/sshd:parse_effective", "port 22\nport 2222\npermitrootlogin no\n")
text("_access/ufw:parse_added", "Added:\nufw allow from 10.0.0.2 comment 'sparkmatrix:ray'\n")
text("_access/ufw:parse_active", "Status: active\n", refuses=(SparkError,))
text("_access/ufw:parse_closed", 'DEFAULT_INPUT_POLICY="DROP"\n')
text("_managed/settings:parse_limit", "64K", "1024:524288", "infinity", refuses=(ValueError,))
text("_managed/settings:parse_swaps", SWAPS)
text("_managed/secret:parse", 'KEY="0123456789abcdefgh"\n', "0123456789abcdefgh\n", variable="KEY")
text("_managed/etc_hosts:block_of", BLOCK % "a b", owner="x")
text("_managed/avahi:denied", BLOCK % "deny-interfaces=a,b", owner="x")
text("_keeper/report:parse", REPORT, refuses=(SparkError,))
text("_qos/dcb:parse_dcbx", '{"host":true,"ieee":true}', refuses=(SparkError,))
text("_qos/dcb:parse_pfc", (FIXTURES / "dcb/pfc-off.json").read_text(), refuses=(SparkError,))
text("_qos/dcb:parse_ets", (FIXTURES / "dcb/ets-mixed.json").read_text(), refuses=(SparkError,))
text("_qos/dcb:parse_buffer", (FIXTURES / "dcb/buffer.json").read_text(), refuses=(SparkError,))
text("_qos/dcb:parse_app", (FIXTURES / "dcb/app-dscp.txt").read_text(), refuses=(SparkError,))
text("_qos/profile:parse_record", json.dumps(RECORD), refuses=(SparkError,))
text("_qos/profile:parse_wanted", '{"schema": 1, "profile": "roce", "interfaces": ["a"]}', refuses=(SparkError,))
text("_os/update:parse_simulation", "Inst a [1] (2 x [arm64])\nRemv b [1]\n")
text("_os/update:version_key", "6.14.0-1013-nvidia")
text("_os/update:menu", GRUB)
text("_os/machine_state:parse_sessions", "Id=1\nName=a\nState=active\nType=tty\n\nId=2\nState=closing\n")
text("_os/machine_state:parse_packages", "ii \ta\t1.0\nrc \tb\t2\n")
text("_base/meminfo:parse", "MemTotal:  1306 kB\nHugePages_Total:  0\n")
text("_base/listening:parse_tcp", TCP, size=8)
text("_base/systemd:parse", UNITS)
text("_nccl/log:parse", *fixtures("nccl"))
text("_nccl/results:read", *fixtures("nccl"), refuses=(SparkError,))
text("_fabric/ping:parse_rtt", "8980 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.042 ms")
text("_fabric/interfaces:parse_effective", json.dumps(ADDRESSES), refuses=(SparkError,))
text("_fabric/ibdev2netdev:parse", *fixtures("ibdev2netdev"), refuses=(SparkError,))
text("_fabric/show_gids:parse", *fixtures("show_gids"), refuses=(SparkError,))
text("_fabric/perftest:parse", *fixtures("perftest"), refuses=(SparkError,))
text("_fabric/lldp:parse_lldpcli", *fixtures("lldp"), refuses=(SparkError,))
text("_preflight/node_info:driver_version", "NVRM version: NVIDIA UNIX x for aarch64  580.95.05  Release")
text("_preflight/node_info:release", 'NAME="DGX OS"\nVERSION_ID=7.2\n')
text("_preflight/running_engines:gpu_processes", "1234, /usr/bin/python3\n")
text("_preflight/node_health:parse_kernel_log", AER)
text("_preflight/network:parse_addresses", json.dumps(ADDRESSES))
text("_preflight/network:parse_routes", json.dumps(ROUTES))
text("_preflight/network:parse_rules", json.dumps(RULES))
text("_engine/ray_cluster:parse", 'x\n{"nodes": [{"alive": true}], "error": null}\n', refuses=(SparkError,))
text("_engine/version:options_in", HELP)
text("_verdict/journal:stamped", "1764000000.123456 spark1 kernel: mlx5_core: link up\n")
text("_verdict/options:parse", 'vllm:cache_config_info{block_size="16"} 1.0\n', models={}, model="x")
text("_bench/generator:read", *fixtures("bench"), refuses=(SparkError,))
text("_gateway/apply:unit_mark", "Environment=SPARKMATRIX_UNIT=0123456789ab\n")
TEXTS["_support/redaction:redact"] = Reader(
    lambda said: here("_support/redaction:Redactor")(["its-own-token"], anonymous=True, key="k").redact(said),
    (f"serial: 1234567890 {MAC} 8.8.8.8 its-own-token password=x",),
    (),
)
TEXTS["_fabric/netplan:read"] = Reader(lambda said: here("_fabric/netplan:read")("a.yaml", said), (NETPLAN,))
TEXTS["membership:parse_known_hosts"] = Reader(parse_known_hosts, (f"spark1,10.0.0.1 {KEY}\n[spark2]:22 {KEY}\n",), ())
HAVE = {"fingerprint": "a", "have": "f"}
DOCUMENTS = {
    "_fabric/fact:load": Reader(lambda value: here("_fabric/fact:load")(value, "spark1"), (fact(),)),
    "_engine/plan_document:load": reader("_engine/plan_document:load", PLAN.as_dict()),
    "_artifacts/manifest:parse": reader("_artifacts/manifest:parse", manifest().as_dict(), refuses=WRONG),
    "_verdict/document:load": reader("_verdict/document:load", healthy()[0].as_dict(), where="x"),
}


# Among their fixtures are outputs without a result, which they refuse.
REFUSED_FIXTURES = ("show_gids:parse", "perftest:parse", "results:read", "generator:read")


def test_true_output_is_understood() -> None:
    for name, one in TEXTS.items():
        for text in one.true:
            try:
                one.read(text)
            except one.refuses as exc:
                assert name.endswith(("show_gids:parse", "perftest:parse", "results:read", "generator:read")), (
                    name,
                    exc,
                )
    for name, document in DOCUMENTS.items():
        assert document.read(document.true[0]), name


# What they read is no text, or they are parts of a reader that is in the table.
NOT_HERE = [
    "_artifacts/talk:parse_answer",
    "_artifacts/talk:parse_have",
    "_artifacts/work:parse",
    "_engine/engine_json:parse",
    "_fabric/bandwidth:parse_tests",
    "_fabric/ping:parse_paths",
    "_managed/service:parse_environ",
    "_nccl/results:parse_text",
    "_os/options:parse",
    "_qos/dcb:parse_json",
]


def test_every_parser_is_in_the_table() -> None:
    names = set()
    for module in pkgutil.walk_packages([str(Path(p)) for p in node_side.__path__], f"{BASE}."):
        if module.ispkg:
            continue
        for name, _function in inspect.getmembers(import_module(module.name), inspect.isfunction):
            if re.match(r"parse(_|$)", name) and _function.__module__ == module.name:
                names.add(f"{module.name[len(BASE) + 1 :].replace('.', '/')}:{name}")
    assert names - set(NOT_HERE) - set(TEXTS) - set(DOCUMENTS) == set()


PIECES = (*'\n\t \0=:x"{]\xa0\u21d2\ud800', "\x1b[1m", "-1", "9" * 30, "1e999", "NaN", "null")


@st.composite
def damaged(draw: st.DrawFn, true: tuple[str, ...]) -> str:
    """A true text that was cut, glued, doubled, shuffled or overwritten at a few places."""
    text = draw(st.sampled_from(true))
    for _time in range(draw(st.integers(1, 4))):
        at, to = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        to = min(to, at + draw(st.sampled_from([1, 3, 20, 10_000])))
        text = (
            text[:at]
            + draw(
                st.one_of(
                    st.just(""),
                    st.sampled_from(PIECES),
                    st.just(text[at:to] * 2),
                    st.just(text[at:to][::-1]),
                    st.just("\n".join(reversed(text[at:to].split("\n")))),
                    st.text(max_size=8),
                )
            )
            + text[to:]
        )
    return text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def distorted(draw: st.DrawFn, value: Any) -> Any:
    """A document with another value, or none, or one more, at some place of it."""
    if isinstance(value, Mapping) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: draw(distorted(value[key]))}
    if isinstance(value, (list, tuple)) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(distorted(value[place])), *value[place + 1 :]]
    if isinstance(value, Mapping) and value:
        gone = draw(st.sampled_from(sorted(value)))
        return draw(
            st.sampled_from([{key: one for key, one in value.items() if key != gone}, {**value, "more": 1}]) | JSON
        )
    return draw(JSON)


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damaged_text_gives_an_answer_or_a_refusal(name: str, data: st.DataObject) -> None:
    one = TEXTS[name]
    try:
        one.read(data.draw(damaged(one.true)))
    except one.refuses as exc:
        note(str(exc))
        assert str(exc)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_a_distorted_document_gives_an_answer_or_a_refusal(name: str, data: st.DataObject) -> None:
    one = DOCUMENTS[name]
    document = data.draw(distorted(one.true[0]))
    try:
        one.read(document)
    except one.refuses as exc:
        assert str(exc)


# What a cut text tells must be a part of what the whole one tells: no device, entry or rule that was never there.
ENTRIES: dict[str, Callable[[Any], set[Any]]] = {
    "_fabric/ibdev2netdev:parse": lambda ports: {(port.rdma_device, port.port) for port in ports},
    "_fabric/show_gids:parse": lambda gids: {(gid.device, gid.port, gid.index, gid.gid, gid.version) for gid in gids},
    "_access/ufw:parse_active": lambda active: {active},
    "_qos/dcb:parse_pfc": lambda found: {found["pfc"]},
    "_qos/dcb:parse_ets": lambda found: set(found.items()),
    "_qos/dcb:parse_buffer": lambda found: set(found.items()),
    "_qos/dcb:parse_dcbx": lambda owner: {owner},
    "_preflight/network:parse_addresses": lambda found: {one["name"] for one in found or ()},
    "_preflight/network:parse_routes": lambda found: {one["dst"] for one in found or ()},
    "_engine/ray_cluster:parse": lambda found: {str(node) for node in found[0] or ()},
    "_nccl/results:read": lambda runs: {(run.test, row.bytes) for run in runs for row in run.rows},
}


@pytest.mark.parametrize("name", ENTRIES)
@given(data=st.data())
def test_a_cut_text_tells_nothing_that_the_whole_does_not(name: str, data: st.DataObject) -> None:
    one, entries = TEXTS[name], ENTRIES[name]
    text = data.draw(st.sampled_from(one.true))
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        whole = entries(one.read(text))
        part = entries(one.read(cut))
    except one.refuses:
        return
    assert part <= whole or not cut.strip()


@given(distorted(HAVE))
def test_what_another_node_says_that_it_has(document: Any) -> None:
    try:
        parse_have(json.dumps(document).encode(), "a", 15)
    except SparkError as exc:
        assert str(exc)
