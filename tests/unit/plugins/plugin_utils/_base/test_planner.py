# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections import Counter
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Planner, ours, run

HOSTS = ["spark1", "spark2"]


class HostVars(dict[str, Any]):
    """Ansible's, which puts all variables of a host together whenever it is asked for them."""

    def __init__(self) -> None:
        super().__init__(
            {host: {"__one": 1, "__two": 2, **({"__some": 3} if host == "spark2" else {})} for host in HOSTS}
        )
        self.asked = Counter[str]()

    def __getitem__(self, host: str) -> Any:
        self.asked[host] += 1
        return super().__getitem__(host)


def test_what_a_task_has_registered_once_is_read_of_one_host() -> None:
    read: list[Any] = []
    made = Planner(dict, {}, gathered={"one": lambda value, _host: read.append(value)}, partly=("one",), same=("one",))
    for name, found in (("__one", ["spark1"]), ("__some", ["spark2"]), ("__none", [])):
        result = run("test", made, {"one": name}, {"ansible_play_hosts_all": HOSTS, "hostvars": HostVars()})
        assert list(result["one"]) == found
    assert read == [1, 3]


def test_variables_of_a_host_are_put_together_once() -> None:
    hostvars = HostVars()
    made = Planner(dict, {}, gathered=dict.fromkeys(("one", "two", "some"), ours), partly=("some",))
    names = {"one": "__one", "two": "__two", "some": "__some"}
    result = run("test", made, names, {"ansible_play_hosts_all": HOSTS, "hostvars": hostvars})
    assert result["two"] == dict.fromkeys(HOSTS, 2) and result["some"] == {"spark2": 3}
    assert hostvars.asked == dict.fromkeys(HOSTS, 1)


def test_ansibles_own_word_is_a_yes_or_no() -> None:
    found = run("test", Planner(lambda _options: {"changed": ["spark1"]}, {}), {}, {})
    assert found["failed"] and "planner test" in found["msg"]
