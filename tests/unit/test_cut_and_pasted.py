# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Output of tools as people paste it: cut, joined, wrapped, masked. What cannot be read as it was meant is refused;
nothing is lost or invented without a word."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import ibdev2netdev, perftest, show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import dcb

FIXTURES = Path(__file__).parent / "fixtures"
HALVES = (("rocep1s0f0", "enp1s0f0np0"), ("rocep1s0f1", "enp1s0f1np1"), ("roceP2p1s0f0", "enP2p1s0f0np0"),
          ("roceP2p1s0f1", "enP2p1s0f1np1"))  # fmt: skip
DEVICES = [device for device, _netdev in HALVES]


def printed(*states: str) -> str:
    return "".join(
        f"{device} port 1 ==> {netdev} ({state})\n" for (device, netdev), state in zip(HALVES, states, strict=True)
    )


PORTS, OTHER = printed("Up", "Down", "Up", "Down"), printed("Down", "Up", "Up", "Up")
VERBOSE = "".join(
    f"0000:01:00.{number} {device} (MT4129 - GX7-55A    ) Acme ConnectX-7, 2-port 200GbE fw 28.45.1020"
    f" port 1 (ACTIVE) ==> {netdev} (Up)\n"
    for number, (device, netdev) in enumerate(HALVES[:2])
)
TABLE = "".join(
    f"{device}\t1\t3\t0000:0000:0000:0000:0000:ffff:c0a8:64{number:02x}\t192.168.100.{number}  \tv2\t{netdev}\n"
    for number, (device, netdev) in enumerate(HALVES, start=10)
)
COUNTED = f"{TABLE}n_gids_found=4\n"


def before(text: str, words: str) -> str:
    """Up to the last place of these words."""
    return text[: text.rindex(words)]


def each_line(text: str, start: str) -> str:
    return "".join(f"{start}{line}\n" for line in text.splitlines())


def ports(text: str) -> list[str]:
    return [port.rdma_device for port in ibdev2netdev.parse(text)]


def gids(text: str) -> list[tuple[Any, ...]]:
    return [(gid.device, gid.version, gid.netdev) for gid in show_gids.parse(text)]


WHOLE = [(device, 2, netdev) for device, netdev in HALVES]
FAILED = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n"
RUN = (FIXTURES / "perftest/four_queues.txt").read_text(encoding="utf-8")

# What is read, or the words of the refusal.
Case = tuple[Callable[[str], Any], str, Any]
CASES: dict[str, Case] = {
    "N1 ports cut before the last arrow": (ports, before(PORTS, " ==> "), "cannot read the row"),
    "N1 ports cut behind the word port": (ports, before(PORTS, " 1 ==> "), "cannot read the row"),
    "N1 ports cut within the word port": (ports, before(PORTS, "rt 1 ==> "), "ends within a row"),
    "N2 ports cut within the last device": (ports, before(PORTS, "s0f1 port"), "ends within a row"),
    "N3 verbose ports cut before the last port": (ports, before(VERBOSE, " port 1"), "cannot read the row"),
    "N3 verbose ports cut before the adapter": (ports, before(VERBOSE, " (MT4129"), "ends within a row"),
    "N3 verbose ports cut within the adapter": (ports, before(VERBOSE, "29 - GX7"), "ends within a row"),
    "N3 verbose ports cut within the PCI address": (ports, before(VERBOSE, "00.1 roce"), "ends within a row"),
    "N4 ports of two machines below each other": (
        ports, PORTS + OTHER, "listed twice with different values of carrier"),
    "N5 ports of two machines by pdsh": (
        ports, each_line(PORTS, "spark-1: ") + each_line(PORTS, "spark-2: "), "rows of several machines"),
    "N6 ports as one line of ansible -o": (ports, PORTS.replace("\n", "\\n"), DEVICES),
    "N7 ports as a JSON string": (ports, '"' + PORTS.replace("\n", "\\n") + '"', DEVICES),
    "N8 ports with an arrow of another kind": (
        ports, PORTS.replace("==> enp1s0f1np1", "\u21d2 enp1s0f1np1"), "cannot read the row"),
    "N9 GIDs cut within the version": (gids, before(TABLE, "2\tenP2p1s0f1np1"), "is cut, wrapped or damaged"),
    "N10 GIDs cut within the IPv4 address": (gids, before(TABLE, ".100.13"), "is cut, wrapped or damaged"),
    "N11 GIDs cut behind the IPv4 address": (gids, before(TABLE, "  \tv2"), "is cut, wrapped or damaged"),
    "N12 GIDs cut within the GID": (gids, before(TABLE, ":0000:ffff:c0a8"), "is cut within its GID"),
    "N12 GIDs cut behind the index": (gids, before(TABLE, "\t0000:0000:0000:0000"), "ends within a row"),
    "N12 GIDs cut within the device": (gids, before(TABLE, "s0f1\t1"), "ends within a row"),
    # Nobody can tell; with the count behind the table it is told.
    "N13 GIDs cut within the netdev": (
        gids, before(TABLE, "np1\n"), [*WHOLE[:3], ("roceP2p1s0f1", 2, "enP2p1s0f1")]),
    "N14 GIDs with the host of the IPv4 address masked": (
        gids, COUNTED.replace("192.168.100.10", "192.168.x.x"), WHOLE),
    "N15 GIDs with all of the IPv4 address masked": (
        gids, COUNTED.replace("192.168.100.10", "x.x.x.x"), WHOLE),
    "N16 GIDs with the IPv4 address taken out": (
        gids, COUNTED.replace("192.168.100.10", "<ip>"), "is cut, wrapped or damaged"),
    "N17 GIDs with what tput prints": (gids, COUNTED.replace("\tv2", "\tv2\x1b(B"), WHOLE),
    "N18 GIDs wrapped before the netdev": (
        gids, COUNTED.replace("\tenp1s0f0np0", "\n enp1s0f0np0"), "is cut, wrapped or damaged"),
    "N19 GIDs with a note in place of the netdev": (
        gids, COUNTED.replace("enp1s0f0np0", "IB port"), "is cut, wrapped or damaged"),
    "N19 GIDs with a bare IB in place of the netdev": (
        gids, COUNTED.replace("enp1s0f0np0", "IB"), "is cut, wrapped or damaged"),
    "N20 GIDs with an arrow in place of the netdev": (
        gids, COUNTED.replace("enp1s0f0np0", "\u2190 IB"), [("rocep1s0f0", 2, None), *WHOLE[1:]]),
    "N22 dcb with a key twice": (
        dcb.parse_pfc, '{"delay":7,"prio_pfc":[],"prio_pfc":[false]}', "a key comes twice"),
    "N23 dcbx with a flag that is a text": (dcb.parse_dcbx, '{"host":"true"}', "expected true or false"),
    "N24 dcbx without a flag": (dcb.parse_dcbx, "{}", "firmware"),
    "two runs of perftest, the second one failed": (perftest.parse, RUN + FAILED, "has failed"),
    "two runs of perftest, the first one failed": (
        lambda text: len(perftest.parse(text).rows), FAILED + RUN, 1),
}  # fmt: skip


@pytest.mark.parametrize(("read", "text", "outcome"), CASES.values(), ids=list(CASES))
def test_what_is_read_of_it(read: Callable[[str], Any], text: str, outcome: Any) -> None:
    try:
        found = read(text)
    except SparkError as refused:
        assert isinstance(outcome, str) and outcome in refused.found, refused
        assert refused.where
    else:
        assert found == outcome


def test_the_whole_output_is_read() -> None:
    assert ports(PORTS) == ports(OTHER) == DEVICES and ports(VERBOSE) == DEVICES[:2]
    assert gids(TABLE) == gids(COUNTED) == WHOLE
    assert len(perftest.parse(RUN).rows) == 1


@pytest.mark.parametrize(("read", "text"), [(ports, PORTS), (ports, VERBOSE), (gids, TABLE)])
def test_no_row_is_lost_wherever_the_text_is_cut(read: Callable[[str], Collection[Any]], text: str) -> None:
    rows = text.count("\n")
    for place in range(1, len(text)):
        try:
            found = read(text[:place])
        except SparkError:
            continue
        begun = text[:place].rstrip("\n").count("\n") + 1
        assert len(found) == begun <= rows, text[:place]
