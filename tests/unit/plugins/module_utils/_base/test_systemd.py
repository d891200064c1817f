# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit


def answer(text: str, rc: int = 0):
    return lambda argv: Completed(rc, text if rc == 0 else "", "" if rc == 0 else text)


def test_several_units_in_their_order() -> None:
    text = (
        "LoadState=loaded\nActiveState=active\nAccept=yes\nListen=0.0.0.0:22 (Stream)\nListen=[::]:22 (Stream)\n\n"
        "LoadState=not-found\nActiveState=inactive\n\n"
        "LoadState=loaded\nActiveState=activating\nMainPID=7\nJob=12\n"
    )
    found = systemd.units(answer(text), ["a.socket", "b.service", "c.device"])
    assert list(found) == ["a.socket", "b.service", "c.device"]
    socket, absent, device = found.values()
    assert (socket.accept, socket.running, socket.alive) == (True, True, True)
    assert socket.listen == ("0.0.0.0:22 (Stream)", "[::]:22 (Stream)")
    assert (absent.exists, absent.stopped) == (False, True)
    assert (device.running, device.starting, device.alive, device.stopped) == (False, True, True, False)
    assert (device.main_pid, device.job) == (7, True)


@pytest.mark.parametrize("text", ["", "MainPID=x\nNRestarts=-1\nLoadState=\nno separator\n"])
def test_what_is_missing_or_odd_is_that_of_a_unit_that_does_not_exist(text: str) -> None:
    assert systemd.unit(answer(text), "a.service") == Unit("a.service")


def test_an_answer_about_other_units_is_refused() -> None:
    with pytest.raises(SparkError, match="reported 1 of 2 units"):
        systemd.units(answer("LoadState=loaded\n"), ["a.service", "b.service"])


def test_without_systemd() -> None:
    with pytest.raises(SparkError, match=r"a.service: systemctl show failed \(not booted\)"):
        systemd.unit(answer("not booted", 1), "a.service")
    with pytest.raises(SparkError, match=r"systemd: systemctl show failed"):
        systemd.manager(answer("not booted", 1), ["Version"])


def test_the_manager_itself() -> None:
    assert systemd.manager(answer("DefaultLimitNOFILE=9\nA=b=c\n"), ["DefaultLimitNOFILE", "A"]) == {
        "DefaultLimitNOFILE": "9",
        "A": "b=c",
    }
