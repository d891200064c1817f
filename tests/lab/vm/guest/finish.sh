#!/bin/sh
# Runs inside the image of the virtual machines after the packages are there.
set -eu
# Under emulation every unit costs seconds, and these are not part of what is tested. udev replays events for network
# devices alone, as in the node image.
systemctl disable docker.socket ufw.service NetworkManager.service
systemctl mask docker.service docker.socket containerd.service systemd-timesyncd.service getty@tty1.service \
  systemd-hwdb-update.service systemd-journal-catalog-update.service systemd-update-utmp.service \
  systemd-update-done.service systemd-tpm2-setup.service systemd-tpm2-setup-early.service systemd-pcrphase.service \
  systemd-pcrphase-sysinit.service systemd-pstore.service ldconfig.service rdma-ndd.service kmod-static-nodes.service \
  systemd-logind.service systemd-hostnamed.socket systemd-sysext.socket systemd-creds.socket sshd-unix-local.socket \
  systemd-random-seed.service systemd-sysusers.service systemd-networkd-persistent-storage.service \
  systemd-udev-load-credentials.service systemd-tmpfiles-clean.timer systemd-networkd-wait-online.service \
  modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service \
  dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
  sys-fs-fuse-connections.mount systemd-initctl.socket rdma-load-modules@.service iwpmd.service \
  systemd-modules-load.service systemd-firstboot.service systemd-machine-id-commit.service
mkdir -p /etc/systemd/system-generators
for generator in systemd-ssh-generator systemd-gpt-auto-generator systemd-tpm2-generator systemd-cryptsetup-generator \
  systemd-veritysetup-generator systemd-hibernate-resume-generator; do
  ln -sf /dev/null "/etc/systemd/system-generators/$generator"
done
systemctl set-default multi-user.target
systemctl enable sparkvm.service
# Log in without PAM: each ansible task would start a session with a manager of its own. It needs a password field that is
# not locked.
usermod -p '*' dgx
printf 'UsePAM no\n' > /etc/ssh/sshd_config.d/vm.conf
printf '/dev/vda / ext4 defaults 0 0\n' > /etc/fstab
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*.log /tmp/*
: > /etc/machine-id

# The initial file system: a shell and the modules that the disk and the network need. No udev, no search for devices.
kernel=$(ls /lib/modules)
root=$(mktemp -d)
mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/root" "$root/modules"
cp /bin/busybox "$root/bin/"
number=100
for module in virtio_pci virtio_blk ext4 virtio_net virtio_rng ib_uverbs rdma_rxe; do
  modprobe -S "$kernel" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
  number=$((number + 1))
  case $file in
    *.xz) xz -dc "$file" ;;
    *) cat "$file" ;;
  esac > "$root/modules/$number-$(basename "${file%.xz}")"
done
cat > "$root/init" <<'INIT'
#!/bin/busybox sh
set -e
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t ext4 -o rw /dev/vda /root
# What makes this disk one machine (name, keys, addresses) is a tar archive on the second disk, taken once.
if [ ! -e /root/var/lib/sparkvm-seeded ]; then
  /bin/busybox tar -x -f /dev/vdb -C /root
  : > /root/var/lib/sparkvm-seeded
fi
/bin/busybox mount -o move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
INIT
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) > /boot/initrd.img-sparkvm
rm -rf "$root"
