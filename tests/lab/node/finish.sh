#!/bin/sh
# Runs inside the image after the packages are there.
set -eu
useradd --create-home --uid 1000 --shell /bin/bash --groups sudo,adm dgx
chmod 0755 /home/dgx
systemctl set-default graphical.target
systemctl enable ssh NetworkManager systemd-networkd docker.socket
# Started by its socket: on a Spark it runs from the start, here four of them would be idle load.
systemctl disable docker.service containerd.service
# The role gateway runs an nginx of its own; the distribution's would listen on port 80 of every interface.
systemctl disable nginx.service
# Bans, kills and announcements are for the tests that ask for them.
systemctl disable fail2ban.service earlyoom.service nftables.service avahi-daemon.service avahi-daemon.socket
# Nothing in the lab waits for a network that netplan does not know, nothing updates packages behind a test, and nothing
# changes modules and binary formats of the host.
systemctl mask systemd-networkd-wait-online.service NetworkManager-wait-online.service \
  apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
  console-getty.service getty.target systemd-modules-load.service \
  systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount
# These change settings of the whole machine, which is the host.
rm -f /usr/lib/sysctl.d/10-coredump-debian.conf /usr/lib/sysctl.d/50-coredump.conf /usr/lib/sysctl.d/50-pid-max.conf \
  /usr/lib/sysctl.d/50-default.conf /usr/lib/sysctl.d/50-bubblewrap.conf
# udev may tell the host's devices from the node's only by subsystem: replay events for network devices alone.
mkdir -p /etc/systemd/system/systemd-udev-trigger.service.d
cat > /etc/systemd/system/systemd-udev-trigger.service.d/lab.conf <<'UNIT'
[Service]
ExecStart=
ExecStart=-udevadm trigger --action=add --subsystem-match=net
UNIT
# Every node gets its own.
rm -f /etc/ssh/ssh_host_* /etc/hostname /etc/resolv.conf
: > /etc/machine-id
: > /etc/resolv.conf
rm -f /var/lib/dbus/machine-id /usr/sbin/policy-rc.d
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*.log /tmp/*
for tool in ibdev2netdev show_gids; do ln -s /opt/spark-lab/sim/bin/$tool /usr/sbin/$tool; done
# The kernel has no DCB over netlink, so the real one of iproute2 has nothing to talk to.
ln -sf /opt/spark-lab/tools/dcb /usr/sbin/dcb
