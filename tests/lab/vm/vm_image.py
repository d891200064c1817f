# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The disk of a virtual machine: the node image with a kernel and verbs, built once per list of packages.

The packages go into an overlay above the node image, and mkfs makes the disk from that directory: no loop device, no
copy. Kernel and initial file system lie beside it, for QEMU to start directly.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import shutil
import time

import node_image
from labstate import cache_dir, run

HERE = pathlib.Path(__file__).resolve().parent
GUEST = HERE / "guest"
RECIPE = "1"  # raise it when the steps below change what they make
DISK_GIB = 4

BUILD = r"""
set -eu
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$PART/upper,workdir=$PART/work" "$PART/tree"
TREE=$PART/tree
mount -t proc proc "$TREE/proc"
printf '#!/bin/sh\nexit 101\n' > "$TREE/usr/sbin/policy-rc.d"
chmod 755 "$TREE/usr/sbin/policy-rc.d"
printf '%s\n' force-unsafe-io 'path-exclude=/usr/share/doc/*' 'path-exclude=/usr/share/man/*' \
  > "$TREE/etc/dpkg/dpkg.cfg.d/lab"
mkdir -p "$TREE/etc/initramfs-tools"
printf 'update_initramfs=no\n' > "$TREE/etc/initramfs-tools/update-initramfs.conf"
cp /etc/resolv.conf "$TREE/etc/resolv.conf"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
chroot "$TREE" apt-get -q update
chroot "$TREE" apt-get -qy --no-install-recommends -o Dpkg::Options::=--force-confold install $PACKAGES
chroot "$TREE" apt-get clean
rm -f "$TREE/etc/dpkg/dpkg.cfg.d/lab" "$TREE/usr/sbin/policy-rc.d"
: > "$TREE/etc/resolv.conf"
cp "$GUEST/sparkvm.service" "$TREE/etc/systemd/system/"
cp "$GUEST/finish.sh" "$TREE/root/finish.sh"
chroot "$TREE" sh /root/finish.sh
rm "$TREE/root/finish.sh"
umount "$TREE/proc"
cp "$TREE"/boot/vmlinuz-* "$PART/vmlinuz"
cp "$TREE"/boot/initrd.img-sparkvm "$PART/initrd"
rm -rf "$TREE"/boot/*
mkfs.ext4 -q -F -L sparkvm -O ^metadata_csum -E lazy_itable_init=1,lazy_journal_init=1 \
  -d "$TREE" "$PART/disk.raw" "${DISK_GIB}G"
umount "$TREE"
rm -rf "$PART/upper" "$PART/work" "$PART/tree"
"""


def fingerprint() -> str:
    digest = hashlib.sha256(f"{RECIPE}{DISK_GIB}{node_image.fingerprint()}{BUILD}".encode())
    for path in (HERE / "packages.txt", GUEST / "finish.sh", GUEST / "sparkvm.service"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def path() -> pathlib.Path:
    return cache_dir() / "vm-images" / fingerprint()


def build() -> pathlib.Path:
    """The directory with ``disk.raw``, ``vmlinuz`` and ``initrd``, made if it is not there; older ones are removed."""
    place = path()
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return place
        tree = node_image.build()
        started = time.monotonic()
        for left_over in place.parent.glob("*.part"):
            node_image.remove_tree(left_over)
        part = place.with_name(place.name + ".part")
        for name in ("upper", "work", "tree"):
            (part / name).mkdir(parents=True)
        proxy = node_image.apt_proxy()
        environment = {
            **os.environ,
            **({"http_proxy": proxy} if proxy else {}),
            "LOWER": str(tree),
            "PART": str(part),
            "GUEST": str(GUEST),
            "PACKAGES": " ".join(node_image.packages(HERE)),
            "DISK_GIB": str(DISK_GIB),
        }
        node_image.logged(["unshare", "--mount", "--propagation", "private", "sh", "-c", BUILD], environment)
        part.rename(place)
        _remove_older(place)
        print(f"Image of the virtual machines {place.name} built in {time.monotonic() - started:.0f} s", flush=True)
        return place


def _remove_older(place: pathlib.Path) -> None:
    """Images that no running machine has as its disk's base."""
    used = run(["ps", "-eo", "args"])
    for other in place.parent.iterdir():
        if other.is_dir() and other != place and other.name not in used:
            shutil.rmtree(other)
