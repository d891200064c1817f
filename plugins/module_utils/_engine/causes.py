# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Why a rank has died, by its journal: known causes with what to do about them, and the telling lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run as run_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names

JOURNAL_SEARCHED = 2000  # lines; vLLM prints the same traceback from every rank
JOURNAL_SHOWN = 8

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# `(EngineCore pid=67) ERROR 11-21 09:25:31 [core.py:1510] ` and its like; the rest repeats from rank to rank.
_PREFIX = re.compile(r"^(?:\([^)]*\)\s*)*(?:ERROR [0-9-]+ [0-9:]+ \[[^\]]*\]\s*)?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Exit)(?:\([^)]*\))?: \S|^[\w ./-]+: error: ")
# First match wins. What is printed by vLLM 0.31 to 0.33, torch, the kernel and systemd when they end for this cause.
CAUSES: Sequence[tuple[str, str, str]] = (
    (
        # vllm 40756, 50021; spark-vllm-docker 308. The kernel says Xid 31 beside it.
        r"(?s)(_prepare_inputs|gdn_attn\.py|synchronize_input_prep).{0,6000}illegal memory access"
        r"|illegal memory access.{0,6000}(_prepare_inputs|gdn_attn\.py|synchronize_input_prep)",
        "a kernel met memory that is not its own while the next step was prepared, as drafts by MTP do under"
        " asynchronous scheduling before vLLM 0.29 (Xid 31 in the kernel's log)",
        "Set {options}: {{no-async-scheduling: true}}, or use vLLM 0.29 or newer",
    ),
    (
        r"cutlass_gemm_caller.{0,80}Error Internal|Failed to find a kernel that can implement",
        "it is built for another CUDA than this GPU needs, such as 12.9",
        "Use an image or packages for CUDA 13 (cu130), or set {options}: {{linear-backend: marlin}}",
    ),
    (
        r"CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER|cudnnSetStream failed",
        "its cuDNN fails on this GPU with an fp8 cache, as those before 9.23.1 do",
        "Use a newer image, or set {options}: {{kv-cache-dtype: auto}}",
    ),
    (
        r"buffer_size \(\d+ B\) exceeds device memory budget",
        "the loader InstantTensor found too little free memory, where files in the page cache count as used",
        "Start it again (playbooks/restart.yml empties the page cache), or set {options}:"
        " {{load-format: fastsafetensors}}",
    ),
    (
        r"Free memory on device .* is less than desired",
        "something else had so much of the GPU's memory that its own share was not free when it started",
        "nvidia-smi and free -g say who has it: end that, or lower {gpu_memory_utilization}",
    ),
    (
        r"No available memory for the cache blocks|CUDA out of memory|OutOfMemoryError|NV_ERR_NO_MEMORY|oom-kill"
        r"|Out of memory: Killed",
        "it ran out of memory",
        "Lower {context}, {concurrency} or {gpu_memory_utilization}; see what else uses memory: free -g",
    ),
    (
        r"No such file or directory: '(g\+\+|gcc|c\+\+|cc)'|InvalidCxxCompiler|No working C\+\+ compiler"
        r"|Failed to find C compiler",
        "there is no C++ compiler, which torch needs on every node",
        "Install it on all nodes: apt-get install g++",
    ),
    (
        r"[Aa]ddress already in use|error while attempting to bind on address",
        "its port is taken by another process",
        "Find it with: ss -ltnp; or choose another {port}",
    ),
    (
        r"error: unrecognized arguments|error: argument --|error: ambiguous option|expected one argument",
        "it does not accept its command line",
        "Correct {options} or the recipe for the version in {venv_requirements}",
    ),
    (
        r"libnuma\.so\.1: cannot open|ImportError: lib\S+: cannot open shared object",
        "a shared library is missing on a node",
        "Install the library that the journal names on all nodes (libnuma1, libgomp1)",
    ),
    (
        r"RAY_AUTH|[Aa]uthentication (token|failed)|Unauthenticated",
        "Ray refused its token",
        "Run the ray layer again, which gives all nodes the same token: ansible-playbook site.yml --tags ray",
    ),
    (
        r"[Cc]annot provide a placement group|placement group .* (infeasible|pending)|Failed to connect to GCS"
        r"|Ray cluster .* not (found|available)|ConnectionError: Could not find any running Ray instance",
        "Ray has fewer nodes than the model needs",
        "Run the ray layer again: ansible-playbook site.yml --tags ray",
    ),
    (
        r"Repository Not Found|GatedRepoError|401 Client Error|LocalEntryNotFoundError|does not appear to have a file"
        r"|Invalid repository ID or local directory"
        r"|No such file or directory: '?\S+\.(safetensors|json)",
        "it cannot get the model",
        "Check the recipe's model; a gated model needs HF_TOKEN_PATH, an offline node the files on its disk",
    ),
    (
        r"Read-only file system",
        "it writes to a place that its unit does not allow (docs/security.md, What a rank may do)",
        "Let it write below engine_model_cache or /var/lib/sparkmatrix/home; or set engine_sandbox: false",
    ),
    (
        r"Failed at step (EXEC|NAMESPACE)",
        "its program or a directory is missing, or lies below a home directory, which its unit cannot read",
        "Put interpreter and models outside of /home and /root, and make what is missing; or set engine_sandbox: false",
    ),
    (
        r"No space left on device",
        "a disk is full",
        "Free some space: df -h",
    ),
)


def explain(unit: str, runner: Runner = run_program, invocation: str = "") -> str:
    """The known cause with its remedy if the journal shows one, and the journal's telling lines.

    ``invocation`` narrows it to one start of the unit: messages of its processes, and systemd's about it.
    """
    which = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"] if invocation else ["-u", unit]
    argv = ["journalctl", *which, "-n", str(JOURNAL_SEARCHED), "--no-pager", "-o", "cat"]
    lines = [_COLOUR.sub("", line).rstrip() for line in runner(argv).out.splitlines() if line.strip()]
    plain = [_PREFIX.sub("", line) for line in lines]
    # Tracebacks end in their exception. The first ones are the cause, later ones what followed from it.
    shown = list(dict.fromkeys(line for line in plain if _EXCEPTION.match(line)))[:JOURNAL_SHOWN]
    shown = shown or lines[-JOURNAL_SHOWN:]
    tail = "\n".join(f"    {line[:240]}" for line in shown) or "    (nothing)"
    cause = known_cause(lines)
    remedy = cause[1] if cause else ""
    remedy = remedy.format_map(engine_names.OptionNames(in_entry=bool(engine_names.instance_of(unit))))
    hint = f"It seems that {cause[0]}. {remedy}.\n" if cause else ""
    return f"{hint}From its journal (all of it: journalctl -u {unit}):\n{tail}"


def known_cause(lines: Sequence[str]) -> tuple[str, str] | None:
    """(cause, remedy), the first of :data:`CAUSES` that any line shows."""
    text = "\n".join(lines)
    return next(((cause, remedy) for pattern, cause, remedy in CAUSES if re.search(pattern, text)), None)
