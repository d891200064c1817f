# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about machines, and about what runs compared with the plan."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import (
    ANY,
    DRIFT_OLD_S,
    FAIL,
    GPU,
    MODELS,
    NODE,
    SERVING,
    WARN,
    WHOLE,
    Alert,
    Rule,
    drifted,
)

TROUBLE = (
    Rule(
        "not_answering",
        "A machine does not answer",
        "It is off, hangs, or refuses the login. A model that runs on it does not answer either",
        "Look at the machine: does its screen show a login, does it answer a ping? If neither, hold its power button",
        "Take it off power for a minute; to put another machine in its place, run playbooks/node_replace.yml",
        "docs/tasks/wedged-node.md",
        layers=ANY,
        fixed="nothing can be done on a machine that cannot be read",
        alerts=(
            Alert('up{job="node"} == 0', NODE),
            Alert(
                'time() - node_textfile_mtime_seconds{file=~".*/node.prom"} > 120',
                f"{NODE}: its metrics are old (systemctl status sparkmatrix-metrics)",
                sign="metrics_old",
                severity=WARN,
            ),
        ),
    ),
    Rule(
        "peers_unreachable",
        "The head does not reach a machine over the nodes' own ssh",
        "The head starts and watches the ranks over it, so a rank that dies there is not started again",
        "ansible-playbook site.yml --tags access",
        "On the head: sudo ssh -v -F /etc/sparkmatrix/ssh/config <machine> version",
        "docs/access.md",
        alerts=(drifted("peers_unreachable"),),
    ),
    Rule(
        "power_off",
        "A boot ended without a shutdown",
        "Power was lost, the machine switched itself off because of heat or its power supply, or it froze until"
        " somebody switched it off. The journal breaks off in all of these cases, and does not say which it was",
        "Ask whether somebody cut the power. If not: use the power supply that came with the machine, give it air"
        " on all sides, and cap the clock: sudo nvidia-smi -lgc 0,2000",
        "If it happens again on the same machine under the same load, contact its manufacturer",
        "github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/issues/31, 2026-08",
        severity=WARN,
    ),
    Rule(
        "no_memory_journal",
        "The GPU's driver got no memory (NV_ERR_NO_MEMORY)",
        "CPU and GPU share one memory. A few such lines are normal at a start. Many of them come before a machine"
        " freezes without an OOM kill, until it is taken off power",
        "Give the engine less: engine_gpu_memory_utilization 0.75, a smaller engine_context or engine_concurrency,"
        " then run playbooks/upgrade.yml; stop what else uses memory (free -g)",
        "Set engine_options: {max-num-batched-tokens: 4096}; to update driver and firmware, run"
        " playbooks/os_update.yml",
        "github.com/NVIDIA/open-gpu-kernel-modules/issues/1358, github.com/vllm-project/vllm/issues/56824, 2026-09",
        severity=WARN,
        alerts=(
            Alert(
                "time() - sparkmatrix_watchdog_stopped_seconds < 3600",
                f"{NODE}: the memory watchdog has stopped the engine",
                "0s",
                "watchdog",
                FAIL,
            ),
            Alert(
                "rate(node_pressure_memory_stalled_seconds_total[5m]) > 0.1",
                f"{NODE}: all its programs wait for memory for a tenth of the time",
                "5m",
                "pressure",
            ),
        ),
    ),
    Rule(
        "out_of_memory",
        "The kernel killed a process because memory ran out",
        "If it was a rank, the whole model was started again; if it was something else, it is missing now",
        "Find out what took the memory, on the machine: sudo journalctl -k -g 'Out of memory'. Lower"
        " engine_gpu_memory_utilization and run playbooks/upgrade.yml, or stop what runs beside the engine",
        "Leave os_stabilization_watchdog_available_mib above 0: it stops the engine before the kernel has to choose",
        "docs/concepts/unified-memory.md",
        severity=WARN,
        alerts=(Alert("increase(node_vmstat_oom_kill[1h]) > 0", NODE, "0s", severity=FAIL),),
    ),
    Rule(
        "gpu_slow",
        "The GPU is slowed down, or stuck in a slow state",
        "Every rank waits for the slowest one. In its low-power state the GPU answers and is busy, and nvidia-smi"
        " shows no reason",
        "If somebody has capped the clock at less than 2000 MHz, sudo nvidia-smi -rgc removes the cap. Else shut"
        " the machine down, unplug its power supply for five minutes, and start it",
        "Use the power supply that came with it, without a hub in between, and update the firmware (sudo fwupdmgr"
        " update)",
        "github.com/Blackwellboy/model-serving-minefield/pull/55, 2026-08",
        severity=WARN,
        layers=GPU,
        needs=frozenset({"clocks"}),
        alerts=(
            Alert("sparkmatrix_gpu_slowed == 1", f"{NODE}: {{{{ $labels.reason }}}}", "5m", "slowed"),
            Alert(
                "avg_over_time(sparkmatrix_gpu_utilization_ratio[10m]) > 0.9"
                " and on (node) max_over_time(sparkmatrix_gpu_sm_clock_hertz[10m]) < 1e9",
                f"{NODE}: busy below 1 GHz",
                "0s",
                "clock",
            ),
        ),
    ),
    Rule(
        "gpu_error",
        "The driver reports an error of the GPU (Xid)",
        "NVIDIA says that no application causes these errors: hardware, driver or firmware do",
        "Reboot the machine; afterwards look for new ones: sudo journalctl -k -g 'NVRM: Xid'",
        "Update driver and firmware. If the same Xid comes back, contact the manufacturer",
        "docs.nvidia.com/deploy/xid-errors",
        severity=WARN,
    ),
    Rule(
        "pcie_error",
        "A fatal PCIe error",
        "The device behind it may be gone, or stall the whole machine",
        "Reboot; if it comes back, take the machine off power for a minute and update its firmware (sudo fwupdmgr"
        " update)",
        "Reseat the QSFP cable while the machine is off. If the error comes back, contact the manufacturer",
        "docs.kernel.org/PCI/pcieaer-howto.html",
        layers=WHOLE,
        needs=frozenset({"kernel_log"}),
    ),
    Rule(
        "not_looked_at",
        "Something on a machine cannot be checked",
        "A file that cannot be read, or a program that does not answer, is neither right nor wrong: a fault behind"
        " it would go unreported",
        "On the machine: sudo sparkmatrix drift, which names the file or program and why. Files of this collection"
        " are written anew by ansible-playbook site.yml",
        "Look for a full or broken disk (df -h, sudo journalctl -k) and, where it is Docker, at docker info",
        "docs/verdicts.md",
        severity=WARN,
        alerts=(
            Alert(
                "sparkmatrix_metrics_part_ok == 0",
                f"{NODE}: {{{{ $labels.part }}}} (journalctl -u sparkmatrix-metrics)",
                "5m",
                "metrics",
            ),
            Alert(
                f"time() - sparkmatrix_drift_checked_seconds > {DRIFT_OLD_S}",
                f"{NODE}: nobody has looked for drift (systemctl status sparkmatrix-drift.timer)",
                sign="drift_old",
            ),
            drifted("not_looked_at", "drift"),
        ),
    ),
)

PLANNED = (
    Rule(
        "environment_differs",
        "A running rank has another environment than the plan",
        "It was started before the last change, or by hand, or a drop-in of its unit sets a value. So it may not"
        " use the fabric that was measured",
        "Restart it as planned: ansible-playbook playbooks/restart.yml",
        "On the machine systemctl cat <unit> shows drop-in files that are not of this collection;"
        " engine_environment and the recipe may set the variable too",
        "docs/fabric-fact.md",
        alerts=(drifted("environment_differs"),),
    ),
    Rule(
        "option_ignored",
        "The engine does not use an option as planned",
        "It lowered or rounded the value, or this version ignores the option, so the plan's figures for memory and"
        " speed do not hold",
        "Look for the option in the engine's journal (on the head: sudo journalctl -u <unit>), which has the"
        " reason; set a value that the engine takes, and run playbooks/upgrade.yml",
        "Leave the option out, or use a newer version of the engine",
        "docs/engine.md",
        severity=WARN,
        alerts=(drifted("option_ignored"),),
    ),
    Rule(
        "image_differs",
        "A container image is not the one that was planned",
        "Its name was pulled or tagged again since then. Ranks of one model must not run different engines",
        "ansible-playbook site.yml, which takes one image for all nodes and starts the service with it",
        "Name the image with its digest (engine_image: name@sha256:…)",
        "docs.docker.com/reference/cli/docker/image/inspect",
        alerts=(drifted("image_differs"),),
    ),
    Rule(
        "dangling_weights",
        "A model is incomplete on a machine, or not the same on all",
        "Broken links and missing files make the next start fail; different revisions give wrong answers",
        "ansible-playbook playbooks/artifacts.yml -e artifacts_action=repair, which brings what is missing",
        "ansible-playbook playbooks/artifacts.yml -e artifacts_action=verify reads every byte, and names broken files",
        "docs/artifacts.md",
        alerts=(
            Alert("sparkmatrix_model_present == 0", f"{NODE} {{{{ $labels.model }}}}", "10m", severity=WARN),
            drifted("dangling_weights", "drift"),
        ),
    ),
    Rule(
        "firmware_differs",
        "Kernel, driver, firmware or NCCL are not the same on all machines",
        "When NCCL fails because versions differ, the reason is hard to find",
        "To bring all machines to one set of versions, run playbooks/os_update.yml; firmware: sudo fwupdmgr update"
        " on each",
        "Update the machine that is behind by hand, with its cable plugged in, and reboot it",
        "docs/operations.md",
        severity=WARN,
        layers=WHOLE,
        needs=frozenset({"nccl", "rdma"}),
        alerts=(drifted("firmware_differs"),),
    ),
    Rule(
        "assumption_wrong",
        "A machine is not as this collection assumes",
        "Much of it was written without a real Spark, so what depends on this assumption may not work here",
        "Send the file that playbooks/first_contact.yml has written to the project (docs/verdicts.md), and go on"
        " with care",
        "Update this collection, and run it again",
        "docs/tested.md",
        severity=WARN,
    ),
)

CHECKS = (
    Rule(
        "root",
        "Tasks do not run as root",
        "Services, limits and network belong to root",
        "Leave become: true in place; the login user needs sudo to root",
        layers=ANY,
        fixed="every change needs root",
    ),
    Rule(
        "systemd",
        "Systemd is not the init system",
        "All services are systemd units",
        "Use DGX OS or another distribution that boots with it",
        layers=ANY,
        fixed="all services are systemd units",
    ),
    Rule(
        "python",
        "The machine's Python is older than 3.9",
        "Modules run in it",
        "Install a newer python3, or name one in ansible_python_interpreter",
        layers=ANY,
        fixed="modules would end in tracebacks",
    ),
    Rule(
        "gb10",
        "The machine is no GB10 (`preflight_require_gb10`)",
        "Plans and memory limits are those of a Spark",
        layers=ANY,
    ),
    Rule(
        "memory",
        "The memory is neither that of a Spark of 64 GB nor of one of 128 GB",
        "The model would not fit as planned",
        "Look for memory that the firmware or kernel parameters keep",
        layers=frozenset({"engine", "plan"}),
    ),
    Rule(
        "memory_differs",
        "The machines do not have the same memory",
        "A part of the larger ones stays unused",
        "Every rank of a service gets what fits the smallest of its nodes. Put machines of one size into a"
        " service (engine_services)",
        severity=WARN,
        layers=frozenset({"engine", "plan"}),
    ),
    Rule(
        "disk",
        "Less than 20 GiB is free where something has to be installed, or it cannot be written to",
        "Installing would stop half way",
        layers=SERVING,
    ),
    Rule(
        "model_disk",
        "A machine has less free space than a model takes that it has to fetch first, by the recipe",
        "The download would stop half way, with a full disk",
        "Free some space (playbooks/artifacts.yml lists the models and removes unused ones), put"
        " engine_model_cache on a larger disk, or name a smaller model",
        layers=MODELS,
    ),
    Rule(
        "prefix_disk",
        "A disk has less room than engine_prefix_cache_gb, beside models that are yet to come and a twentieth that"
        " stays free",
        "Models and images would find the disk full, or less would be kept than was asked for",
        "Set engine_prefix_cache_gb (of a service: prefix_cache_gb) to what there is room for, or free some space"
        " (playbooks/artifacts.yml lists the models and removes unused ones)",
        layers=SERVING,
    ),
    Rule(
        "clock",
        "Clocks differ by more than 10 s",
        "Certificates fail, and logs of several machines cannot be read together",
        "Set it: timedatectl set-ntp true, and check that the machine reaches a time server",
        layers=WHOLE,
    ),
    Rule(
        "commands",
        "A program that a layer needs is missing",
        "The layer would stop half way",
        layers=ANY,
    ),
    Rule(
        "compiler",
        "No CUDA compiler for the engine's Python environment",
        "vLLM goes without FlashInfer then, and a model that needs it does not start",
        "Install the CUDA toolkit, which DGX OS brings (sudo apt-get install cuda-toolkit-13-0), or set"
        " engine_runtime: container",
        severity=WARN,
        layers=frozenset({"engine"}),
    ),
    Rule(
        "clones",
        "Machine-id or host name is the same on two machines",
        "A cloned disk makes equal addresses and equal names",
        layers=WHOLE,
    ),
    Rule(
        "cma",
        "The kernel has the CMA leak (`CmaTotal: 0 kB`, `CmaFree` above 0; seen with 7.0.0-1019-nvidia)",
        "RDMA registration fails with ENOMEM, and NCCL does not start",
        "Boot with kho=off, or with another kernel, if NCCL fails to start",
        severity=WARN,
        layers=WHOLE,
    ),
    Rule(
        "ports",
        "Something else listens on a port of the head, on one of Ray or node_exporter on any node, or of a service"
        " where its head is",
        "The service could not start",
        layers=SERVING | {"gateway", "observability", "web_ui"},
    ),
    Rule(
        "limits",
        "The settings ask for higher limits than this machine can grant",
        "pam_limits refuses every login whose limits it cannot set",
        layers=frozenset({"os_stabilization"}),
        fixed="nobody could log in any more",
    ),
    Rule(
        "engine_python",
        "The interpreter of the engine's environment does not run, is older than 3.11, or is not the one of the"
        " collection's lock (3.12) where the environment has to be built",
        "vLLM cannot be installed or started with it",
        layers=SERVING,
    ),
    Rule(
        "gpu",
        "The GPU answers NVML (nvidia-smi), but CUDA cannot be initialized",
        "The engine would wait for the GPU until its time is up",
        "Look for 'NVRM: Xid' in journalctl -k, then reboot; power-cycle the machine if that does not help",
        layers=GPU,
        needs=frozenset({"gpu"}),
    ),
    Rule(
        "low_power",
        "The kernel's journal of this boot says that a device stayed in its low-power state, and it is missing"
        " (only a note where it is back)",
        "Only a machine without power resets it; until then the device is slow or missing",
        layers=WHOLE,
        needs=frozenset({"kernel_log"}),
    ),
    Rule(
        "session",
        "The network connection that Ansible uses belongs to a desktop user, and the desktop is to go",
        "A Wi-Fi profile that was made in the desktop may come up only while somebody is logged in there",
        layers=frozenset({"os_stabilization"}),
        needs=frozenset({"session"}),
    ),
)
