# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The readers of what a tool, a file or another machine says, each with true input. ``test_readers.py`` damages it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ansible_collections.sparkmatrix.cluster.plugins import module_utils as node_side
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.work import Progress, Work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description, Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.model_files import Reply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Unknown
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Question, Target
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import store as keeper_store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Entry, Stop, Store, Verified
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import State
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status.endpoint import Endpoint
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access.membership import parse_known_hosts
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import service_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import run_document
from engine_plans import PLAN
from model_manifest import manifest
from preflight_inputs import fact
from report_samples import healthy
from status_documents import said as status_said

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
_DESCRIPTION = service_files.make(PLAN.here[0], PLAN.ray, service_files.Settings(), service_files.Marks()).files
AT_HAND = at_hand.AtHand(PLAN.here[0].engine.served_model_name, "abc", _DESCRIPTION)
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


def here(name: str, base: str = BASE) -> Any:
    """``_room/file:function`` of module_utils."""
    file, _colon, function = name.partition(":")
    return getattr(import_module(f"{base}.{file.replace('/', '.')}"), function)


def reader(name: str, *true: Any, refuses: tuple[type[Exception], ...] = (SparkError,), **more: Any) -> Reader:
    function = here(name)
    return Reader(lambda value: function(value, **more), true, refuses)


WRONG = (ValueError, TypeError)
TEXTS: dict[str, Reader] = {}


def text(name: str, *true: str, refuses: tuple[type[Exception], ...] = (), **more: Any) -> None:
    TEXTS[name] = reader(name, *true, refuses=refuses, **more)


text("_access/fail2ban:parse_ignored", "`- 127.0.0.0/8\n   10.0.0.1\n")
text("_access/discover:parse_avahi", "=;enP7s7;IPv4;spark1;_ssh._tcp;local;spark1.local;10.0.0.1;22;\n")
TEXTS["_access/discover:parse_name"] = Reader(
    lambda text: here("_access/discover:parse_name")(text.encode("latin-1", "replace")),
    ("\0\1\x84\0\0\1\0\1\0\0\0\0\x01a\0\0\x0c\0\1\xc0\x0c\0\x0c\0\1\0\0\0\1\0\7\5spark\0",),
    (),
)
text("_access/sshd:parse_effective", "port 22\nport 2222\npermitrootlogin no\n")
text("_firewall/ufw:parse_added", "Added:\nufw allow from 10.0.0.2 comment 'sparkmatrix:ray'\n")
text("_firewall/ufw:parse_active", "Status: active\n", refuses=(SparkError,))
text("_firewall/ufw:parse_closed", 'DEFAULT_INPUT_POLICY="DROP"\n')
text("_managed/settings:parse_limit", "64K", "1024:524288", "infinity", refuses=(ValueError,))
text("_managed/settings:parse_swaps", SWAPS)
text("_managed/secret:parse", 'KEY="0123456789abcdefgh"\n', "0123456789abcdefgh\n", variable="KEY")
text("_managed/etc_hosts:block_of", BLOCK % "a b", owner="x")
text("_managed/avahi:denied", BLOCK % "deny-interfaces=a,b", owner="x")
text("_engine/report:parse", REPORT, refuses=(SparkError,))
text("_engine/switch:wanted", '{"model": "org/model", "plan": "abc"}', refuses=(SparkError,))
TEXTS["_engine/at_hand:parse"] = Reader(
    lambda text: here("_engine/at_hand:parse")(raw(text), at_hand.path(AT_HAND.model)), (AT_HAND.text,)
)
TEXTS["_keeper/model_socket:question"] = Reader(
    lambda text: here("_keeper/model_socket:question")(raw(text)), ('{"model": "org/model"}\n',)
)
text(
    "_status/endpoint:load",
    Endpoint("http://127.0.0.1:8000/v1", 8000, "sk-0123456789abcdef", "org/model", "generate").write(),
    refuses=(SparkError,),
)
text("_qos/dcb:parse_dcbx", '{"host":true,"ieee":true}', refuses=(SparkError,))
text("_qos/dcb:parse_pfc", (FIXTURES / "dcb/pfc-off.json").read_text(), refuses=(SparkError,))
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
text("_nccl/results:ours", *fixtures("nccl"), refuses=(SparkError,))
text("_nccl/results:table", *fixtures("nccl"), refuses=(SparkError,))
text("_fabric/ping:parse_rtt", "8980 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.042 ms")
text("_fabric/ibdev2netdev:parse", *fixtures("ibdev2netdev"), refuses=(SparkError,))
text("_fabric/show_gids:parse", *fixtures("show_gids"), refuses=(SparkError,))
text("_fabric/perftest:parse", *fixtures("perftest"), refuses=(SparkError,))
text("_fabric/lldp:parse_lldpcli", *fixtures("lldp"), refuses=(SparkError,))
text("_preflight/node_info:driver_version", "NVRM version: NVIDIA UNIX x for aarch64  580.95.05  Release")
text("_preflight/node_info:release", 'NAME="DGX OS"\nVERSION_ID=7.2\n')
text("_base/gpu:parse_processes", "1234, /usr/bin/python3\n")
text("_base/journal:parse_errors", AER)
text("_base/network:parse_addresses", json.dumps(ADDRESSES))
text("_base/network:parse_routes", json.dumps(ROUTES))
text("_base/network:parse_rules", json.dumps(RULES))
text("_engine/ray_cluster:parse", 'x\n{"nodes": [{"alive": true}], "error": null}\n', refuses=(SparkError,))
text("_engine/version:options_in", HELP)
text("_base/journal:stamped", "1764000000.123456 spark1 kernel: mlx5_core: link up\n")
text("_snapshot/options:parse", 'vllm:cache_config_info{block_size="16"} 1.0\n', models={}, model="x")
text("_bench/generator:read", *fixtures("bench"), refuses=(SparkError,))
text("_gateway/relay:listed", '{"data": [{"id": "m"}]}', refuses=(SparkError,))
TEXTS["_gateway/relay_body:model"] = Reader(
    lambda text: asyncio.run(here("_gateway/relay_body:model")(text.encode(), lambda: asyncio.sleep(0))),
    ('{"model": "m"}',),
    (ValueError,),
)
text("_gateway/status:relayed", '{"held": 3, "configuration": "x"}', refuses=(SparkError, ValueError))
text("_gateway/apply:unit_mark", "Environment=SPARKMATRIX_UNIT=0123456789ab\n")
TEXTS["_support/redaction:redact"] = Reader(
    lambda text: here("_support/redaction:Redactor")(["its-own-token"], anonymous=True, key="k").redact(text),
    (f"serial: 1234567890 {MAC} 8.8.8.8 its-own-token password=x",),
    (),
)
TEXTS["_fabric/netplan:read"] = Reader(lambda text: here("_fabric/netplan:read")("a.yaml", text), (NETPLAN,))
TEXTS["membership:parse_known_hosts"] = Reader(parse_known_hosts, (f"spark1,10.0.0.1 {KEY}\n[spark2]:22 {KEY}\n",), ())


TASK = {"task": {"name": "Ask"}, "hosts": {"spark1": {"action": "debug", "msg": ["a"]}, "spark2": {"failed": True}}}
TEXTS["_screen/run_document:document"] = Reader(
    lambda text: run_document.document("site", 1, text),
    (json.dumps({"plays": [{"tasks": [TASK]}], "global_custom_stats": {"sparkmatrix": {"url": "u"}}}),),
    (),
)


# --- readers of files, and of what is not told as text alone ----------------------------------------------------------

HOME = tempfile.TemporaryDirectory(prefix="readers-")  # removed with the process
ROOT = HOME.name


def there(name: str) -> Any:
    """``_room/file:function`` of plugin_utils."""
    return here(name, BASE.replace("module_utils", "plugin_utils"))


def raw(said: str) -> bytes:
    """What is no text in UTF-8, too."""
    return said.encode("utf-8", "surrogatepass")


def placed(path: str, content: bytes) -> Path:
    place = Path(ROOT, path.lstrip("/"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    place.chmod(0o600)
    return place


def in_file(
    name: str, path: str, read: Callable[[Path], Any], *true: str, refuses: tuple[type[Exception], ...] = (SparkError,)
) -> None:
    """What is read of a file at ``path``, below :data:`ROOT`."""
    TEXTS[name] = Reader(lambda said: read(placed(path, raw(said))), true, refuses)


def said(
    name: str, read: Callable[[str], Any], *true: str, refuses: tuple[type[Exception], ...] = (SparkError,)
) -> None:
    TEXTS[name] = Reader(read, true, refuses)


def tool(text: str) -> Callable[..., Completed]:
    return lambda *_argv, **_more: Completed(0, text)


def machine(text: str = "[]") -> Machine:
    return Machine(root=ROOT, runner=tool(text))


def archive(path: str, entry: str, content: bytes, mode: str = "w") -> Path:
    place = placed(path, b"")
    with tarfile.open(str(place), mode) as made:  # type: ignore[call-overload]
        info = tarfile.TarInfo(entry)
        info.size = len(content)
        made.addfile(info, io.BytesIO(content))
    return place


def js(value: Any) -> str:
    return json.dumps(document.plain(value))


ABSENT = {"kind": "absent"}
FILE = State("file", content=b"x", mode=0o644).as_dict()
MANIFEST = manifest().as_dict()
DESCRIPTION = Description(
    "spark1", 8000, "org/model", "/k", ("a.service",), (Member("spark1", 0, "10.0.0.1", True, True),), unit="a.service"
)
INSPECTED = [
    {
        "Id": "sha256:a",
        "RepoTags": ["a:1"],
        "RepoDigests": [],
        "Size": 7,
        "Os": "linux",
        "Architecture": "arm64",
        "RootFS": {"Layers": ["sha256:b"]},
        "Config": {"Env": [], "Image": "a:1"},
        "State": {"Status": "running"},
        "Name": "/one",
        "Image": "sha256:a",
    }
]
CHAT = {
    "model": "m",
    "choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 1},
}
STREAM = f"data: {json.dumps(CHAT)}\n\ndata: [DONE]\n"
TARGET = Target("127.0.0.1", 8000, "m", "")

# -- what changes are taken back by
in_file(
    "_access/apply:_memory",
    here("_access/apply:MEMORY"),
    lambda _path: here("_access/apply:_memory")(machine()),
    json.dumps({"schema": 1, "active": True, "closed": False, "files": dict.fromkeys(ufw.FILES, FILE)}),
)
for room, values in (
    ("_fabric", {"plan_hash": "a", "hosts": ["a"], "interfaces": {"a": {"mtu": 1}}}),
    ("_access", {"connection": ["a"], "active": True}),
):
    guard = here(f"{room}/rollback:GUARD")
    said(f"{room}/rollback:GUARD", guard.parse, guard.kind("id", 1.0, 2.0, {"/a": State()}, ["/b"], **values).text())
said(
    "_fabric/interfaces:Memory",
    here("_fabric/interfaces:Memory").parse,
    json.dumps(
        {
            "schema": 1,
            "networkd_started": True,
            "backend": "networkd",
            "interfaces": {
                "a": {"mtu": 1500, "up": True, "sysctls": {"b": 1}, "nm_managed": False, "addresses": ["c"]}
            },
        }
    ),
)
in_file(
    "_managed/settings:Settings",
    here("_managed/settings:record_path")("x"),
    lambda _path: here("_managed/settings:Settings")("x", here("_base/machine:Machine")(ROOT)).load(),
    json.dumps(
        {
            "schema": 1,
            "sysctl": {"vm.swappiness": "1"},
            "limits": {"x": "1:2"},
            "packages": {"a": "b"},
            "pending": ["x"],
            "merged": {"/a": {"b": 1}},
        }
    ),
)
in_file(
    "_managed/files:_Set",
    here("_managed/files:manifest_path")("x"),
    lambda _path: here("_managed/files:_Set")("x", ROOT, True)._load("x"),
    json.dumps({"schema": 1, "directories": ["/a"], "files": {"/a/b": {"original": FILE, "secret": False}}}),
)
said("_managed/json_merge:load", lambda text: here("_managed/json_merge:load")(raw(text), "/a"), '{"a": {"b": 1}}')
in_file(
    "_managed/service:Service",
    "note.json",
    lambda path: here("_managed/service:Service")._noted_hash(
        SimpleNamespace(_note=path), SimpleNamespace(invocation="a")
    ),
    '{"config_hash": "b", "invocation": "a"}',
    refuses=(),
)

# -- what the keeper has kept
STEP = here("_engine/golden:Step")("a", -0.5, {"a": -0.5})
GOLDEN = here("_engine/golden:Record")("w", "s", "vllm on 1 node", plain=(here("_engine/golden:Said")((STEP,), 3),))
for name, path, true in (
    (
        "look",
        "state",
        js(keeper_store.State(phase="serving", history=(Entry("t", "dead", "x"),), stopped=Stop("t", "stop.yml"))),
    ),
    ("verified", "verified", js(Verified("t", "m", "x"))),
    ("_golden", "golden", js(keeper_store.Golden((GOLDEN,)))),
):
    in_file(
        f"_keeper/store:{name}",
        f"{Store().directory}/{path}.json",
        lambda _path, name=name: getattr(Store(ROOT), name)(),
        true,
        refuses=(),
    )
in_file(
    "_engine/rank:_watchdog",
    here("_os/memory_watchdog:REASON"),
    lambda _path: here("_engine/rank:Node")(None, here("_base/machine:Machine")(ROOT))._watchdog(),
    '{"time": "t", "reason": "r"}',
    refuses=(),
)
in_file(
    "_engine/kept_plan:read",
    f"{here('_engine/kept_plan:DIRECTORY')}/current.json",
    lambda _path: here("_engine/kept_plan:_load")("current", ROOT),
    json.dumps(PLAN.as_dict()),
)
in_file(
    "_engine/engine_json:read", "engine.json", lambda path: here("_engine/engine_json:read")(str(path)), js(DESCRIPTION)
)
in_file(
    "_engine/probe:read_config",
    "engine.json",
    lambda path: here("_engine/probe:read_config")(str(path)),
    js(DESCRIPTION),
)
in_file(
    "_engine/image:known",
    here("_engine/image:ANSWERS"),
    lambda _path: here("_engine/image:known")(ROOT),
    '{"sha256:a": {"used": {"names": ["a"], "day": 1}}}',
    refuses=(),
)
in_file(
    "_fabric/fact:on_disk",
    FACT_PATH,
    lambda _path: here("_fabric/fact:load")(here("_fabric/fact:on_disk")(machine()), "spark1"),
    json.dumps(fact()),
)
in_file(
    "_fabric/status:read",
    FACT_PATH,
    lambda _path: here("_fabric/status:read")(machine()),
    json.dumps(fact()),
    refuses=(),
)
in_file(
    "_fabric/apply:_read_fact",
    FACT_PATH,
    lambda _path: here("_fabric/apply:_Apply")._read_fact(
        SimpleNamespace(machine=machine(), wanted=SimpleNamespace(fact=None), outcome=SimpleNamespace())
    ),
    json.dumps(fact()),
    refuses=(),
)
in_file(
    "_fabric/bandwidth:read_record",
    "record.json",
    lambda path: here("_fabric/bandwidth:read_record")(str(path)),
    '{"a": 1}',
    refuses=(),
)
in_file(
    "_verdict/store:read",
    f"{here('_verdict/store:paths').VERDICTS}/20261123T073000Z-verify.json",
    lambda _path: here("_verdict/store:read")(root=ROOT),
    json.dumps(healthy()[0].as_dict()),
    refuses=(),
)

# -- what tools and other nodes say
said(
    "_status/logs:parse",
    here("_status/logs:parse"),
    '{"MESSAGE": "a", "_PID": "1", "UNIT": "sparkmatrix-keeper.service", "__REALTIME_TIMESTAMP": "1764000000000000"}',
    '{"MESSAGE": [72, 105], "_SYSTEMD_UNIT": "x.service", "__REALTIME_TIMESTAMP": "1"}',
    refuses=(),
)
said(
    "_status/every_node:Stream",
    lambda text: here("_status/every_node:Stream")(
        "spark1", ["ssh"], lambda *_a, **_k: SimpleNamespace(stdout=io.StringIO(text), wait=lambda: 0)
    ).read(lambda _host, _found: None),
    '{"a": 1}\nConnection refused\n',
    refuses=(),
)
said(
    "_gateway/apply:_interfaces",
    lambda text: here("_gateway/apply:_Gateway")._interfaces(SimpleNamespace(machine=machine(text))),
    json.dumps(ADDRESSES),
)
said(
    "_fabric/apply:default_routes",
    lambda text: here("_fabric/apply:default_routes")(machine(text)),
    json.dumps(ROUTES),
    '[{"dst": "default", "nexthops": [{"dev": "a"}]}]',
)
said(
    "_fabric/neighbors:decode",
    lambda text: here("_fabric/neighbors:decode")(text.encode("utf-8", "replace")),
    '{"token": "a1", "node": "spark1", "netdev": "eth0", "cage": 0, "heard": [1], "here": [0, 1], "ready": []}',
    refuses=(ValueError,),
)
said(
    "_fabric/neighbor_sockets:lldpd",
    lambda text: here("_fabric/neighbor_sockets:lldpd")(tool(text), {}),
    *fixtures("lldp"),
    refuses=(),
)
said(
    "_os/update:firmware",
    lambda text: here("_os/update:firmware")(machine(text)),
    '{"Devices": [{"Name": "a", "Version": "1", "Releases": [{"Version": "2"}]}]}',
    refuses=(),
)
said(
    "_base/gpu:clocks",
    lambda text: here("_base/gpu:clocks")(machine(text)),
    "5.20, 96, 71, 2405, 0x0000000000000000\n",
    *fixtures("gpu"),
    refuses=(),
)
said(
    "_base/gpu:cuda",
    lambda text: here("_base/gpu:cuda")(machine(text)),
    "answer 0 CUDA_SUCCESS\n",
    "absent libcuda.so.1\n",
    refuses=(),
)
said(
    "_screen/ansible_options:words",
    lambda text: there("_screen/ansible_options:words")([f"--extra-vars={text}"], "engine_allow"),
    '{"engine_allow": ["command"]}',
    "engine_allow=command,x",
    refuses=(),
)
said(
    "_verdict/drift:read",
    lambda text: here("_verdict/drift:read")("spark1", text),
    here("_verdict/drift:Node")(
        "spark1", (here("_verdict/drift:Drift")("spark1", "wrong_mtu", "x"),), {"driver": "1"}
    ).as_text(),
)
said(
    "_engine/mpi:_accepted",
    lambda text: here("_engine/mpi:_accepted")(text, b"s", "p", "n"),
    json.dumps({"words": ["orted"], "proof": here("_engine/mpi:sign")(b"s", "p", "n", ["orted"])}),
)
said("_engine/image:inspect", lambda text: here("_engine/image:inspect")("a:1", tool(text)), json.dumps(INSPECTED))
said(
    "_artifacts/image_list:listed",
    lambda text: here("_artifacts/image_list:listed")(Kept(PLAN, None), tool(text), ROOT),
    json.dumps(INSPECTED),
    refuses=(),
)
said(
    "_engine/version:ask",
    lambda text: here("_engine/version:ask")(
        Unknown("/venv", False, ("vllm",), ("vllm",)),
        tool(text),
        user="u",
        home="/h",
    ),
    f"\n{json.dumps({'version': '1', 'cuda': '13.0', 'help': HELP})}\n",
)

# -- answers of an engine


class _Answered:
    """In place of an exchange with an engine, which has said this."""

    def __init__(self, text: str) -> None:
        self.text = text

    def lines(self) -> list[str]:
        return self.text.split("\n")

    def close(self) -> None:
        pass


def answered(text: str, ask: Callable[[], Any]) -> Any:
    with mock.patch.object(import_module(f"{BASE}._engine.probe"), "_Exchange", lambda *_a, **_k: _Answered(text)):
        return ask()


for task, true in (
    ("generate", STREAM),
    ("embed", '{"data": [{"embedding": [0.5, 1]}]}'),
    ("rank", '{"results": [{"relevance_score": 0.5}, {"relevance_score": 1}]}'),
):
    said(
        f"_engine/probe:ask {task}",
        lambda text, task=task: answered(
            text, lambda: here("_engine/probe:ask")(replace(TARGET, task=task), Question())
        ),
        true,
    )
said(
    "_engine/probe:listed",
    lambda text: answered(text, lambda: here("_engine/probe:listed")(TARGET)),
    '{"data": [{"id": "m"}]}',
)
said(
    "_engine/probe:_complaint",
    lambda text: here("_engine/probe:_complaint")(
        SimpleNamespace(read=lambda _most: raw(text), status=404, reason="Not Found")
    ),
    '{"error": {"message": "no such model"}}',
    '{"detail": "x"}',
    refuses=(),
)
MESSAGE = {
    "choices": [
        {
            "message": {
                "content": '{"answer": "yes"}',
                "tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}],
            }
        }
    ],
    "usage": {"completion_tokens": 1},
}
for name in ("_json", "_vision", "_tool"):
    said(
        f"_engine/smoke:{name}",
        lambda text, name=name: answered(text, lambda: here(f"_engine/smoke:{name}")(TARGET, 1.0, 8)),
        json.dumps(MESSAGE),
    )

for name, body in (
    ("_plain", {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}]}),
    ("_chat", {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]}]}),
):
    arguments = (TARGET, ["a"]) if name == "_plain" else (TARGET,)
    said(
        f"_engine/golden:{name}",
        lambda text, name=name, arguments=arguments: answered(text, lambda: here(f"_engine/golden:{name}")(*arguments)),
        json.dumps({"choices": [{"index": 0, "logprobs": body}], "usage": {"prompt_tokens": 3}}),
    )

# -- models and images
in_file(
    "_engine/model_files:read config.json",
    "model/config.json",
    lambda path: here("_engine/model_files:read")(model_folder(path)),
    '{"a": 1}',
)
in_file(
    "_engine/model_files:read index",
    "model/model.safetensors.index.json",
    lambda path: here("_engine/model_files:read")(model_folder(path)),
    '{"weight_map": {"a": "one.safetensors"}}',
)
in_file(
    "_engine/model_files:read header",
    "model/header",
    lambda path: here("_engine/model_files:read")(model_folder(path, path.read_bytes())),
    '{"a": {"data_offsets": [0, 3]}}',
)


def model_folder(path: Path, header: bytes = b'{"a": {"data_offsets": [0, 3]}}') -> Path:
    for other in path.parent.iterdir():
        if other != path:
            other.unlink()
    if path.name != "config.json":
        (path.parent / "config.json").write_text("{}", encoding="utf-8")
    (path.parent / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    return path.parent


said(
    "_artifacts/selection:choose",
    lambda text: here("_artifacts/selection:choose")(
        "org/m", {"one.safetensors": 3, "model.safetensors.index.json": 9}, {"model.safetensors.index.json": text}
    ),
    '{"weight_map": {"a": "one.safetensors"}}',
)
in_file(
    "_artifacts/work:read",
    "work.json",
    lambda path: here("_artifacts/work:read")(str(path)),
    js(Work("copy", "/home", "org/m")),
)
in_file(
    "_artifacts/work:progress",
    "progress.json",
    lambda path: here("_artifacts/work:progress")(str(path)),
    js(Progress("a", "org/m", "copying")),
    refuses=(),
)
in_file(
    "_artifacts/folders:read_json",
    "kept/a.json",
    lambda _path: here("_artifacts/folders:read_json")(ROOT, ("kept",), "a.json"),
    '{"a": [1]}',
    refuses=(),
)
said(
    "_artifacts/archive:find",
    lambda text: here("_artifacts/archive:find")(
        str(archive("model.tar", "manifest.json", raw(text))), "org/model", ""
    ),
    json.dumps({"schema": 1, "models": [{"manifest": MANIFEST, "refs": ["main"]}]}),
)
said(
    "_artifacts/image_source:from_archive",
    lambda text: here("_artifacts/image_source:from_archive")(
        "a:1", str(archive("image.tar", "index.json", raw(text)))
    ),
    json.dumps({"manifests": [{"digest": f"sha256:{'a' * 64}", "annotations": {"io.containerd.image.name": "a:1"}}]}),
)
said(
    "_artifacts/image_source:from_docker",
    lambda text: here("_artifacts/image_source:from_docker")("a:1", f"sha256:{'a' * 64}", tool(text), ROOT),
    '{"DockerRootDir": "/docker", "Driver": "overlay2", "DriverStatus": [["Backing", "xfs"]]}',
    '{"DockerRootDir": "/d", "Driver": "o", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}',
)
in_file(
    "_artifacts/image_source:_from_overlay2",
    f"docker/image/overlay2/imagedb/content/sha256/{'a' * 64}",
    lambda _path: here("_artifacts/image_source:from_docker")(
        "a:1", f"sha256:{'a' * 64}", tool('{"DockerRootDir": "/docker", "Driver": "overlay2"}'), ROOT
    ),
    json.dumps({"rootfs": {"diff_ids": [f"sha256:{'b' * 64}"]}}),
)
LAYER = '{"type":2,"payload":"aGk="}\n{"type":1,"name":"a","size":3,"payload":"YQ=="}\n'
for name in ("layer_size", "layer"):
    said(f"_artifacts/image_blobs:{name}", lambda text, name=name: list(map(str, _listed(name, text))), LAYER)


def _listed(name: str, text: str) -> Any:
    path = str(placed("layer.json.gz", gzip.compress(raw(text))))
    found = here(f"_artifacts/image_blobs:{name}")
    return [found(path)] if name == "layer_size" else found(path, "/tree")


def _pinned(text: str) -> Any:
    name = f"a@sha256:{hashlib.sha256(raw(text)).hexdigest()}"
    known = here("_artifacts/image_pin:documents")(name, lambda one: raw(text) if one in name else b"", "linux/arm64")
    return here("_artifacts/image_pin:is_pinned")(name, f"sha256:{'c' * 64}", known, lambda _one: b"")


said(
    "_artifacts/image_pin:documents",
    _pinned,
    json.dumps({"manifests": [{"digest": f"sha256:{'a' * 64}", "platform": {"os": "linux", "architecture": "arm64"}}]}),
    json.dumps({"config": {"digest": f"sha256:{'c' * 64}"}, "layers": []}),
)
HUB = {"HF_ENDPOINT": "https://hub"}
TREE = [
    {"type": "file", "path": "config.json", "size": 3, "oid": "a" * 40},
    {"type": "file", "path": "a.safetensors", "size": 9, "oid": "b" * 40, "lfs": {"oid": "c" * 64, "size": 9}},
]


def hub(text: str, revision: str = "") -> Any:
    """``revision``: what is said of it; else ``text``, of which all of it is made."""

    def get(_self: Any, path: str, _span: str = "") -> Reply:
        return Reply(200, body=raw(revision if revision and "/revision/" in path else text))

    with mock.patch.object(here("_artifacts/hub:_Hub"), "get", get):
        return here("_artifacts/hub:ask")("org/m", "main", HUB)


said("_artifacts/hub:ask revision", hub, json.dumps({"sha": "a" * 40}))
said("_artifacts/hub:ask files", lambda text: hub(text, json.dumps({"sha": "a" * 40})), json.dumps(TREE))
said(
    "_artifacts/hub:_why",
    lambda text: here("_artifacts/hub:_why")(text, "err", 1),
    '{"kind": "disk", "says": "full"}',
    refuses=(),
)

# -- on the controller
said(
    "_status/cluster:read",
    lambda text: there("_status/cluster:read")({"stdout": text}, "spark1"),
    status_said()["stdout"],
    refuses=(),
)
said(
    "_support/capture:unpacked",
    lambda text: here("_support/capture:unpacked")(base64.b64encode(zlib.compress(raw(text))).decode()),
    '{"/proc/meminfo": "MemTotal: 1 kB"}',
    refuses=(ValueError,),
)
in_file(
    "_report/planners:of_folder",
    "report/run.json",
    lambda path: there("_report/planners:of_folder")(path.parent),
    json.dumps(healthy()[0].as_dict()),
    json.dumps({"runs": [healthy()[0].as_dict()]}),
    refuses=(),
)
CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "hidden_size": 64,
    "num_key_value_heads": 2,
    "layer_types": ["full_attention", "linear_attention"],
    "text_config": {"vocab_size": 9},
    "quantization_config": {"config_groups": {"a": {"weights": {"group_size": 16}}}, "weight_block_size": [128]},
    "num_local_experts": 4,
    "intermediate_size": 8,
    "mamba_ssm_dtype": "float32",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "compress_ratios": [],
    "linear_attn_config": {"kda_layers": [1]},
    "sliding_window": 4,
}
in_file(
    "_engine/model:read config.json",
    "shape/config.json",
    lambda path: there("_engine/model:read")(path.parent),
    json.dumps(CONFIG),
    json.dumps({**CONFIG, "layer_types": None, "hybrid_override_pattern": "M*E-"}),
)


def shaped(path: Path) -> Any:
    (path.parent / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return there("_engine/model:read")(path.parent)


in_file(
    "_engine/model:read index",
    "indexed/model.safetensors.index.json",
    shaped,
    '{"metadata": {"total_size": 9}, "weight_map": {"a.norm.weight": "b"}}',
)
in_file(
    "_engine/recipe:read",
    "recipe.yml",
    there("_engine/recipe:read"),
    there("_engine/recipe:SHIPPED").joinpath("qwen3-8b.yml").read_text(encoding="utf-8"),
    refuses=(),
)
THEIRS = """recipe_version: "1"
name: Qwen
description: text
model: Qwen/Qwen3-8B
cluster_only: false
min_nodes: 1
max_nodes: 2
metadata: {description: x}
defaults: {port: 8000, tensor_parallel: 2, gpu_memory_utilization: 0.7}
env: {VLLM_USE_V1: "1", NCCL_DEBUG: INFO}
mods: [a]
command: |
  vllm serve {model} --port {port} --tensor-parallel-size {tensor_parallel} --max-model-len 4096 \\
   --speculative-config '{{"method": "mtp", "num_speculative_tokens": 2}}'
"""


def _taken(peer: Any) -> None:
    there("_peers/as_command:made")(peer)
    there("_peers/as_engine:made")(peer)


LINE = """#!/bin/bash
MODEL=Qwen/Qwen3-8B
ARGS=(--max-model-len 4096 --speculative-config '{"method": "mtp"}')
docker run -d --gpus all -e A=1 -v "$HOME/x:/x" -v /srv/y:/y:ro -p 8000:8000 some/engine:1.2 \\
  vllm serve "$MODEL" --port ${PORT:-8000} "${ARGS[@]}"  # text
"""
COMPOSE = """services:
  engine:
    image: some/vllm:1.2
    environment: {A: "1", NODE_RANK: "${NODE_RANK}"}
    volumes: [/srv/x:/x, {source: /srv/y, target: /y}]
    command: ["--model", "Qwen/Qwen3-8B", "--port", "8000"]
"""
SETTINGS = "IMAGE=some/vllm:1.2\nMODEL=Qwen/Qwen3-8B\nMAX_MODEL_LEN=4096\nSERVE_ARGS=( --seed 1 )\n"
FILES = {"theirs.yml": THEIRS, "line.sh": LINE, "compose.yaml": COMPOSE, "their.env": SETTINGS}
for peer, lines in FILES.items():
    in_file(
        "_peers/read:read" + ("" if lines == THEIRS else f" {peer}"),
        peer,
        lambda path: _taken(there("_peers/read:read")(str(path))),
        lines,
    )
said(
    "_engine/consent:leaves",
    lambda text: list(there("_engine/consent:leaves")("a.b", text)),
    '{"c": 1}',
    refuses=(),
)
said(
    "_engine/kinds/base:_read",
    lambda text: there("_engine/kinds/base:_read")(text, dotted=False),
    '{"c": 1}',
    refuses=(),
)
FOUND = {"address": "10.0.0.1", "others": [], "name": "spark1", "taken": True}
said(
    "_access/proposal:difference",
    lambda text: there("_access/proposal:difference")(text, [FOUND]),
    "all:\n  children:\n    sparks:\n      hosts:\n        spark1: {ansible_host: 10.0.0.1}\n",
    refuses=(),
)
PRINTED = {
    "nvidia_smi": "NVIDIA GB10",
    "/sys/class/net/enp1s0f0np0/carrier": "1",
    "/sys/class/net/enp1s0f0np0/phys_port_name": "p0",
    "/sys/class/net/enp1s0f0np0/speed": "-1",
    "nmcli": "enp1s0f0np0:ethernet:unmanaged",
    "networkctl": "2 enp1s0f0np0 ether routable configured",
    "/etc/netplan": "40-cx7.yaml",
    "boots": " -1 a\n  0 b",
    "/boot/grub": "grubenv",
    "grub": "",
    "/etc/avahi/avahi-daemon.conf": "deny-interfaces=a",
    "kernel_journal": "x: device inaccessible",
    "nvidia_smi_clock": "SM   : 208 MHz",
    "/proc/meminfo": "MemTotal:   125000000 kB",
}


def assumed(text: str) -> Any:
    """The outputs of one machine: a line that begins with a known name begins its output."""
    outputs: dict[str, str] = {}
    for part in text.split("\x1f"):
        name, _tab, output = part.partition("\t")
        outputs[name] = output
    return there("_verdict/first_contact:judge")({"spark1": outputs})


said(
    "_verdict/first_contact:judge",
    assumed,
    "\x1f".join(f"{name}\t{text}" for name, text in PRINTED.items()),
    refuses=(),
)

DOCUMENTS = {
    "_fabric/fact:load": Reader(lambda value: here("_fabric/fact:load")(value, "spark1"), (fact(),)),
    "_engine/plan_document:load": reader("_engine/plan_document:load", PLAN.as_dict()),
    "_artifacts/manifest:parse": reader("_artifacts/manifest:parse", MANIFEST, refuses=WRONG),
    "_verdict/document:load": reader("_verdict/document:load", healthy()[0].as_dict(), where="x"),
}
