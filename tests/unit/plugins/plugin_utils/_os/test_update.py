# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.update import Change, Look
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._os.update import plan
from planning import plan as run_planner

OLD, NEW = "6.11.0-1016-nvidia", "6.14.0-1013-nvidia"
KERNEL = Change(f"linux-image-{NEW}", "", "6.14.0-1013.13")
DRIVER = Change("nvidia-driver", "580.82", "580.95")


def look(**changed):
    found = {
        "kernel": OLD,
        "kernels": [OLD],
        "packages": {f"linux-image-{OLD}": "6.11.16", "nvidia-driver": "580.82"},
        "changes": [KERNEL, DRIVER],
        "boot_free_mib": 500,
        "kernel_mib": 100,
    }
    return Look(**{**found, **changed})


def texts(**looks):
    return [str(finding) for finding in plan(looks).findings]


def test_a_note_is_a_warning():
    (finding,) = plan({"a": look(notes=["apt-get update: no key"]), "b": look()}).findings
    assert finding.severity == "warning" and str(finding).startswith("a: apt-get update: no key")


def test_one_set():
    made = plan({"a": look(firmware=["ConnectX-7: 1 -> 2"]), "b": look()})
    assert made.findings == ()
    node = made.nodes["a"]
    assert (node.kernel, node.previous, node.reboot, node.probation) == (NEW, OLD, True, True)
    assert made.summary == (
        f"a: kernel {OLD} -> {NEW}; linux-image-{NEW} 6.14.0-1013.13, nvidia-driver 580.82 -> 580.95",
        "a: newer firmware, not installed: ConnectX-7: 1 -> 2",
        f"b: kernel {OLD} -> {NEW}; linux-image-{NEW} 6.14.0-1013.13, nvidia-driver 580.82 -> 580.95",
    )


def test_nothing_to_do():
    made = plan({"a": look(changes=[])})
    assert (made.nodes["a"].reboot, made.nodes["a"].previous, made.nodes["a"].kernel) == (False, "", OLD)
    assert made.summary == (f"a: kernel {OLD} stays; apt knows of nothing newer",)


def test_nodes_that_are_at_different_points_end_in_one_set():
    """a is to be updated, b has it already and was not rebooted, c runs it."""
    done = {f"linux-image-{OLD}": "6.11.16", f"linux-image-{NEW}": "6.14.0-1013.13", "nvidia-driver": "580.95"}
    made = plan(
        {
            "a": look(),
            "b": look(packages=done, changes=[], kernels=[OLD, NEW]),
            "c": look(packages=done, changes=[], kernels=[OLD, NEW], kernel=NEW),
        }
    )
    assert made.findings == ()
    assert {host: (node.previous, node.reboot) for host, node in made.nodes.items()} == {
        "a": (OLD, True),
        "b": (OLD, True),
        "c": ("", False),
    }


def test_a_kernel_whose_update_was_interrupted_is_proved_without_a_reboot():
    made = plan({"a": look(changes=[], kernel=NEW, kernels=[OLD, NEW], probation=True)})
    assert (made.nodes["a"].reboot, made.nodes["a"].previous, made.nodes["a"].probation) == (False, "", True)
    assert made.summary == (f"a: kernel {NEW} stays, and is not the default yet; apt knows of nothing newer",)


def test_another_flavour_is_not_booted():
    made = plan({"a": look(changes=[], kernels=[OLD, "6.99.0-1-generic"])})
    assert made.nodes["a"].kernel == OLD


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"problems": ["apt-get check: unmet dependencies"]}, "a: apt-get check: unmet dependencies"),
        ({"changes": [Change("nvidia-x", "1", "")]}, "a: apt would remove nvidia-x"),
        (
            {"grub": ["there is no /boot/grub/grub.cfg"]},
            f"a: a failed boot of the new kernel would not return to {OLD}",
        ),
        ({"kernels": []}, f"a: no installed package holds the running kernel {OLD}"),
        ({"boot_free_mib": 163}, "a: /boot has 163 MiB left, and the new kernel needs 164 MiB"),
    ],
)
def test_what_cannot_be_done_is_refused(changed, says):
    found = texts(a=look(**changed))
    assert len(found) == 1
    assert found[0].startswith(says)


def test_without_a_new_kernel_grub_and_boot_do_not_matter():
    assert texts(a=look(changes=[DRIVER], grub=["no"], boot_free_mib=0)) == []


def test_everything_is_refused_at_once():
    assert len(texts(a=look(grub=["x", "y"], boot_free_mib=0, kernels=[]), b=look(problems=["z"]))) == 5


def test_different_sources_are_named():
    other = replace(DRIVER, new="580.99")
    found = texts(a=look(), b=look(changes=[KERNEL, other]), c=look(changes=[DRIVER]))
    assert found[0].startswith("580.95 on a, c; 580.99 on b: nvidia-driver would not be the same")
    assert found[1].startswith(f"{NEW} on a, b; {OLD} on c: the kernel would not be the same")
    assert "os_update_versions: {nvidia-driver: …}" in found[0]


def test_the_planner_refuses_or_plans():
    look = document.plain(Look(OLD, [OLD]))
    same = {"kernel": OLD, "previous": "", "changes": (), "reboot": False, "probation": False}
    assert run_planner("os_update", {"nodes": {"a": {"look": look}}})["nodes"] == {"a": same}
    refused = run_planner("os_update", {"nodes": {"a": {"look": {**look, "problems": ["broken"]}}}})
    assert refused["failed"] and "a: broken" in refused["msg"]
