# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import causes

UNIT = "sparkmatrix-engine.service"


def printed(journal):
    return lambda _argv: Completed(0, journal)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ValueError: Free memory on device cuda:0 (80/121 GiB) is less than desired GPU memory", "something else"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "ran out of memory"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'g++'", "C++ compiler"),
        ("OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000)", "port is taken"),
        ("vllm: error: unrecognized arguments: --speculative-model", "does not accept its command line"),
        ("ImportError: libnuma.so.1: cannot open shared object file", "shared library"),
        ("FileNotFoundError: No such file or directory: /m/model.safetensors", "cannot get the model"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("OSError: [Errno 30] Read-only file system: '/data/cache'", "writes to a place that its unit does not allow"),
        (
            "x.service: Failed at step NAMESPACE spawning /opt/e/bin/vllm: No such file or directory",
            "directory is missing",
        ),
        ("ray.exceptions.AuthenticationError: Unauthenticated: token", "refused its token"),
        ("ValueError: Cannot provide a placement group of 4 GPUs", "fewer nodes"),
        (
            "File gpu_model_runner.py, line 2076, in _prepare_inputs\n"
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "asynchronous scheduling",
        ),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", None),
        ("RuntimeError: cutlass_gemm_caller, scaled_mm.cuh:62, Error Internal", "another CUDA"),
        ("RuntimeError: err 715 != CUDA_SUCCESS :: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER", "cuDNN"),
        ("RuntimeError: buffer_size (1268776960 B) exceeds device memory budget (693237760 B)", "InstantTensor"),
        ("everything is fine", None),
    ],
)
def test_known_causes(line, cause):
    found = causes.known_cause(["something before", *line.splitlines()])
    assert (found is None) if cause is None else (cause in found[0])


def test_the_first_exceptions_are_shown_once_and_without_prefix():
    prefix = "(EngineCore pid=67) ERROR 11-21 09:25:31 [core.py:1510] "
    journal = "\n".join(
        [
            "Starting",
            prefix + "Traceback (most recent call last):",
            "\x1b[36m(RayWorkerProc pid=5)\x1b[0m " + prefix + "ValueError: the cause",
            prefix + "ValueError: the cause",
            "RuntimeError: what followed",
        ]
    )
    text = causes.explain(UNIT, printed(journal))
    assert text.count("ValueError: the cause") == 1
    assert text.index("the cause") < text.index("what followed")
    assert "Traceback" not in text


def test_one_of_several_is_told_by_the_keys_of_its_entry():
    journal = "OSError: [Errno 98] Address already in use\n"
    assert "choose another engine_port." in causes.explain(UNIT, printed(journal))
    text = causes.explain("sparkmatrix-engine-chat.service", printed(journal))
    assert "choose another port." in text


def test_a_journal_without_exceptions():
    assert "last words" in causes.explain(UNIT, printed("first\nlast words\n"))
    assert "(nothing)" in causes.explain(UNIT, printed(""))
