#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/os_update.yml on two lab nodes with a package source of their own. Usage: test_os_update.py [--beside ID].

The packages are empty. The nodes have the kernel of this machine and no boot loader, so a new kernel has to be refused;
what happens with one is in the unit tests.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError
from test_lifecycle import Cluster

NAME = "nvidia-spark-test"


def package(place: pathlib.Path, name: str, version: str, depends: str = "") -> str:
    """Build an empty package; returns its paragraph for the index of a source."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: lab <lab@localhost>\n"
    control += f"Depends: {depends}\n" if depends else ""
    control += "Description: empty package of the lab\n"
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch) / "tree"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(control)
        os.chmod(tree, 0o755)
        file = place / f"{name}_{version}_all.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, file], check=True, stdout=subprocess.DEVNULL)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{control}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n\n"


class Updates(Cluster):
    def source(self, host: str, *packages: tuple[str, str, str]) -> None:
        """What the node can install, and nothing else."""
        place = self.place / "source"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / "Packages").write_text("".join(package(place, *one) for one in packages))
        words = f"tar -C {place} -c . | ssh -F {self.state}/ssh_config {host} "
        words += "'sudo rm -rf /srv/source && sudo mkdir /srv/source && sudo tar -C /srv/source -x --no-same-owner && "
        words += "sudo rm -rf /etc/apt/sources.list /etc/apt/sources.list.d && "
        words += 'echo "deb [trusted=yes] file:/srv/source ./" | sudo tee /etc/apt/sources.list >/dev/null\''
        subprocess.run(["sh", "-c", words], check=True, timeout=60)

    def version(self, host: str) -> str:
        return self.node(host, f"dpkg-query -W -f '${{Version}}' {NAME}")


def run(here: Updates) -> None:
    hosts = ("spark1", "spark2")
    flavour = os.uname().release.lstrip("0123456789.+~-")
    here.inventory({"spark1": 0, "spark2": 1})
    for host in hosts:
        here.source(host, (NAME, "1.0", ""))
        here.node(host, f"sudo apt-get -qq update && sudo apt-get -qq -y install {NAME} >/dev/null 2>&1")
    here.node("spark1", f"sudo apt-mark hold {NAME}")
    for host in hosts:
        here.source(host, (NAME, "2.0", ""))
    here.play("update", "playbooks/os_update.yml")
    here.expect("versions", [here.version(host) for host in hosts], ["2.0", "2.0"])
    here.expect("on hold", here.node("spark1", "apt-mark showhold").strip(), NAME)
    here.play("update-again", "playbooks/os_update.yml", unchanged=True)

    here.source("spark2", (NAME, "3.0", ""))
    says = f"2.0 on spark1; 3.0 on spark2: {NAME} would not be the same"
    here.play("update-differs", "playbooks/os_update.yml", fails=says)
    kernel = f"linux-image-99.0.0-1-{flavour}"
    for host in hosts:
        here.source(host, (NAME, "4.0", kernel), (kernel, "1", ""))
    here.play("update-kernel", "playbooks/os_update.yml", fails="this machine does not boot with GRUB")
    here.node("spark2", "sudo rm /srv/source/Packages")
    here.play("update-broken", "playbooks/os_update.yml", fails="apt-get update:")
    here.expect("versions", [here.version(host) for host in hosts], ["2.0", "2.0"])


def main(arguments: list[str]) -> int:
    beside = arguments[arguments.index("--beside") + 1] if "--beside" in arguments else ""
    here = Updates(beside, ("-e", "os_update_reboot=never"))
    try:
        here.boot(2)
        run(here)
    except (LabError, subprocess.SubprocessError) as exc:
        print(exc)
        return 1
    finally:
        here.down()
    cluster.say(str(here.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
