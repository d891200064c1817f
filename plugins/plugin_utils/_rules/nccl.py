# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about NCCL."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import (
    WARN,
    WHOLE,
    Rule,
)

NCCL = (
    Rule(
        "plugin_fallback",
        "NCCL uses a network plug-in instead of its own InfiniBand code",
        "Some images have plug-ins that do not know GB10 and silently fall back to sockets; a plug-in that is named"
        " and not found does the same",
        "Take NCCL_NET_PLUGIN out of engine_environment, fabric_environment and the recipe, and run"
        " ansible-playbook site.yml --tags fabric,engine, which sets it to none; an image of your own may name one"
        " in /etc/nccl.conf",
        "Use an image without the plug-in (libnccl-net*.so)",
        "NCCL, src/plugin/net.cc; NGC images on DGX Spark",
    ),
    Rule(
        "nccl_no_interface",
        "NCCL finds no network interface of the name that it was given",
        "NCCL_SOCKET_IFNAME names one that is not on this machine or has no address; names differ between machines"
        " whose cable is in another cage",
        "Take NCCL_SOCKET_IFNAME out of engine_environment and the recipe, and run ansible-playbook site.yml --tags"
        " fabric,engine: each machine gets its own",
        "On the machine: ip -brief address, and compare with NCCL_SOCKET_IFNAME in /etc/sparkmatrix/engine.env",
        "NCCL, src/bootstrap.cc",
    ),
    Rule(
        "nccl_development_build",
        "NCCL is a development build",
        "With a development branch two Sparks reached 3.04 GB/s, though all else was right; the release gave 23.74",
        "Use a release of NCCL (2.28.9 or newer): the one that the engine's packages or image bring, without"
        " LD_PRELOAD or LD_LIBRARY_PATH to another one",
        "Measure with another image of the engine, to tell the library from the cable",
        "github.com/NVIDIA/dgx-spark-playbooks/pull/103",
    ),
    Rule(
        "tree_on_ring",
        "NCCL cannot connect its tree on this ring",
        "NCCL also connects a tree, and in a ring of four or more some machines of the tree have no cable between them",
        "Use a build of NCCL that leaves the tree out (NCCL_SKIP_TREE_CONNECT), or a switch",
        "Split the service: copies on two or three machines each need no tree across the ring",
        "github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/3; NVIDIA supports rings of three",
    ),
    Rule(
        "single_rank_trap",
        "The test of NCCL did not leave the machine",
        "With one rank, or with all ranks on one machine, it measures memory: 100 GB/s and more, or 0",
        "Start one rank on each machine, as playbooks/benchmark.yml --tags nccl does. For a run by hand check"
        " mpirun's host list, and that nccl-tests was built with MPI=1",
        "Look at the list of devices that nccl-tests prints: it has to name each machine once",
        "github.com/NVIDIA/nccl-tests; measured on one GPU",
    ),
    Rule(
        "nccl_slow",
        "NCCL is slower than it should be, and no finding explains it",
        "Smaller RDMA packets (MTU 1500), a 100G link, a badly initialised adapter and other traffic all look like"
        " this",
        "Measure the halves, to see whether it is the cable or NCCL: ansible-playbook playbooks/benchmark.yml"
        " --tags fabric. Stop what else uses the fabric, and compare MTU and rate of both ends",
        "Reboot both machines with the cable plugged in, and measure again",
        "docs/fabric.md",
    ),
    Rule(
        "nccl_wrong_values",
        "NCCL delivered wrong values",
        "What arrived is not what was sent: a model would answer nonsense. Memory, GPU or the library is broken",
        "Do not serve with these machines. Measure them in pairs, to find which one it is, and look for Xid and AER"
        " lines in its kernel log (sudo journalctl -k -g 'Xid|AER')",
        "Use another release of NCCL; if one machine stays at fault, ask NVIDIA to replace it",
        "github.com/NVIDIA/nccl-tests, column #wrong",
    ),
)

CHECKS = (
    Rule(
        "nccl_conf",
        "`/etc/nccl.conf` or the service user's `~/.nccl.conf` sets what the fabric does not set",
        "NCCL obeys it silently wherever our environment has no value",
        severity=WARN,
        layers=WHOLE,
        needs=frozenset({"nccl"}),
    ),
    Rule(
        "nccl_ring",
        "A ring, and NCCL is older than 2.30.7",
        "Older ones do not know which subnet leads to which neighbour (NCCL_IB_SUBNET_AWARE_ROUTING)",
        layers=WHOLE,
        needs=frozenset({"nccl", "rdma"}),
    ),
    Rule(
        "nccl_several",
        "Several machines, and the NCCL of the engine's environment is older than 2.29.3",
        "Older ones hang on aarch64 now and then (vLLM issues 41725, 42354), on rings always",
        severity=WARN,
        layers=WHOLE,
        needs=frozenset({"nccl", "rdma"}),
    ),
)
