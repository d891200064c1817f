# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fabric_drift import Drift as FabricDrift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, REMEDY, dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import full
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.drift import Drift
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access.plan import Node, plan
from fake_spark import Spark
from module_runner import run_program

GOOD = Completed(0, drift.Node("spark2").as_text())
DRIFTED = Drift("spark2", "fabric_fact", "spark2 net0: the MTU is 1500.")
BAD = Completed(0, drift.Node("spark2", (DRIFTED,)).as_text())


def healthy(monkeypatch, found=()):
    """But for what is found, the interfaces are as they were verified."""
    monkeypatch.setattr(fabric_status, "effective", lambda _machine: {})
    monkeypatch.setattr(fabric_status.show_gids, "read", lambda _place: [])
    monkeypatch.setattr(fabric_status.fabric_drift, "drift", lambda *_seen: found)


def head(tmp_path, monkeypatch, other, wrong=False):
    spark = Spark(tmp_path)
    rail = spark.fact.rails[0]
    healthy(monkeypatch, [FabricDrift("wrong_mtu", "spark1", rail, "the MTU is 1500", "")] if wrong else [])
    return drift.collect(Machine(str(tmp_path), spark.run), lambda _host: other, spark.look)


def test_the_head_asks_the_others(tmp_path, monkeypatch):
    assert head(tmp_path, monkeypatch, GOOD) == ([], ("spark1", "spark2"))
    assert head(tmp_path, monkeypatch, BAD)[0] == [DRIFTED]
    (silent,) = head(tmp_path, monkeypatch, Completed(255, "", "No route to host"))[0]
    assert (silent.host, silent.kind) == ("spark2", "peers_unreachable")
    assert head(tmp_path, monkeypatch, GOOD, wrong=True)[0] == [
        Drift("spark1", "wrong_mtu", f"spark1 rocep1s0f0 (net0): the MTU is 1500. {REMEDY}.")
    ]


def asked(tmp_path, spark):
    """Which nodes are asked; what has drifted."""
    hosts = []
    found, looked = drift.collect(
        Machine(str(tmp_path), spark.run),
        lambda host: hosts.append(host) or Completed(0, drift.Node(host).as_text()),
        spark.look,
    )
    assert set(looked) == {"spark1", *hosts}
    return sorted(hosts), [(one.host, one.kind) for one in found]


def test_the_head_asks_every_node_and_not_those_of_its_services_only(tmp_path, monkeypatch):
    healthy(monkeypatch)
    spark = Spark(tmp_path)
    assert asked(tmp_path, spark) == (["spark2"], [])
    nodes = {f"spark{number}": Node(number - 1, f"10.0.0.{number}", "ssh-ed25519 A", ()) for number in (1, 2, 3)}
    nodes["four.example.org"] = Node(3, "10.0.0.4", "ssh-ed25519 A", (), port=2222)
    (text,) = (one["content"] for one in plan(nodes, "peer").files["spark1"] if one["path"] == peers.SSH_CONFIG)
    spark.write(peers.SSH_CONFIG, text)
    assert asked(tmp_path, spark) == (["four.example.org", "spark2", "spark3"], [])
    # Of the fabric, not of what serves.
    (tmp_path / "etc/sparkmatrix/engine.json").unlink()
    assert asked(tmp_path, spark)[0] == ["four.example.org", "spark2", "spark3"]
    # Another machine looks at itself.
    spark.write(FACT_PATH, dump(replace(spark.fact, rank=1)))
    assert asked(tmp_path, spark)[0] == []


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    healthy(monkeypatch)
    spark = Spark(tmp_path)
    spark.write("etc/sparkmatrix/engine.json", "{")
    assert asked(tmp_path, spark) == ([], [("spark1", "not_looked_at")])
    spark = Spark(tmp_path)
    spark.write(FACT_PATH, dump(replace(spark.fact, state="applying")))
    assert asked(tmp_path, spark)[1] == [("spark1", "not_looked_at")]
    (tmp_path / FACT_PATH.lstrip("/")).unlink()
    found, _fact = drift.this_node(Machine(str(tmp_path), spark.run), spark.look)
    assert [one.kind for one in found.drifts] == ["fabric_fact"]


@pytest.mark.parametrize(
    "said", ["fabric: direct", "[]", '{"host": "a", "drifts": [{"host": "a", "kind": "x", "found": ""}]}', "[" * 100000]
)
def test_another_node_is_not_believed(tmp_path, monkeypatch, said):
    (silent,) = head(tmp_path, monkeypatch, Completed(0, said))[0]
    assert (silent.host, silent.kind) == ("spark2", "peers_unreachable")
    lie = drift.Node("spark1", (Drift("spark1", "fabric_fact", "a\nb\x1b[31m"),) * 500, {"kernel": "6"}).as_text()
    told = drift.read("spark2", lie)
    assert len(told.drifts) == drift.MAX_DRIFTS and told.drifts[0].found.isprintable()
    assert {one.host for one in (told, *told.drifts)} == {"spark2"}


def test_versions_have_to_be_the_same_on_all_nodes(tmp_path):
    for path, content in {
        "proc/sys/kernel/osrelease": "6.14.0\n",
        "sys/class/dmi/id/bios_version": "5.36\n",
        "sys/class/infiniband/rocep1s0f0/fw_ver": "28.45.4028\n",
        "sys/class/infiniband/roceP2p1s0f0/fw_ver": "28.45.4028\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    own = full.versions(Machine(str(tmp_path)))
    assert own == {"kernel": "6.14.0", "driver": "", "UEFI firmware": "5.36", "ConnectX firmware": "28.45.4028"}
    nodes = [drift.Node(f"spark{number}", (), own) for number in (1, 2, 3)]
    assert list(drift.of_versions(nodes)) == []
    # One that does not answer has no versions.
    assert list(drift.of_versions([*nodes, drift.Node("spark4")])) == []
    driven = [replace(node, versions={**own, "driver": "580"}) for node in nodes]
    gone = Drift("spark4", "firmware_differs", "driver none, and 580 on spark1, spark2, spark3")
    assert list(drift.of_versions([*driven, drift.Node("spark4", (), own)])) == [gone]
    other = drift.Node("spark4", (), {**own, "ConnectX firmware": "28.39.1002"})
    assert list(drift.of_versions([*nodes, other])) == [
        Drift("spark4", "firmware_differs", "ConnectX firmware 28.39.1002, and 28.45.4028 on spark1, spark2, spark3")
    ]
    # Of two the head is the measure.
    assert [of_version.host for of_version in drift.of_versions([nodes[0], other])] == ["spark4"]


def test_a_fabric_that_nobody_can_tell_of(tmp_path, monkeypatch):
    def broken(_machine):
        raise SparkError("ip is not there")

    spark = Spark(tmp_path)
    monkeypatch.setattr(fabric_status, "effective", broken)
    found, _host = drift.collect(Machine(str(tmp_path), spark.run), lambda _host: GOOD, spark.look)
    assert [(one.kind, one.found) for one in found] == [("fabric_fact", "ip is not there.")]


def test_the_file_for_prometheus(tmp_path):
    drifted = [
        Drift("spark2", "fabric_fact", "x"),
        Drift("spark2", "fabric_fact", "y"),
        Drift("spark1", "image_differs", "z"),
    ]
    path = tmp_path / "sparkmatrix.prom"
    drift.publish(str(path), drift.metrics(drifted, ("spark1", "spark3"), 1.79e9))
    text = path.read_text()
    for line in (
        'sparkmatrix_drift{host="spark2",kind="fabric_fact"} 2',
        'sparkmatrix_drift{host="spark1",kind="image_differs"} 1',
        'sparkmatrix_drift{host="spark1",kind="fabric_fact"} 0',
        'sparkmatrix_drift{host="spark3",kind="not_looked_at"} 0',
        "sparkmatrix_drift_checked_seconds 1790000000",
    ):
        assert line in text.splitlines()
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("found", [[], [Drift("spark1", "fabric_fact", "the MTU is 1500")]])
def test_the_program_of_a_timer(found, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drift, "collect", lambda _machine, _ask: (found, "spark1"))
    monkeypatch.setattr(drift.os, "geteuid", lambda: 0)
    path = tmp_path / "drift.prom"
    assert run_program(drift, "--metrics", str(path)) == len(found)
    said = "drift fabric_fact spark1: the MTU is 1500\n" if found else "nothing has drifted\n"
    assert capsys.readouterr().out == said
    assert f'kind="fabric_fact"}} {len(found)}' in path.read_text()
    assert run_program(drift, "--metrics", str(tmp_path / "no/drift.prom")) == drift.NOT_LOOKED
    monkeypatch.setattr(drift.os, "geteuid", lambda: 1000)
    assert run_program(drift) == drift.NOT_LOOKED
