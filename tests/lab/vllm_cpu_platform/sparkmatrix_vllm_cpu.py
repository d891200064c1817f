# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A vLLM platform plug-in for the lab: the stock CPU platform, but for ranks on several hosts under Ray.

The stock platform (vLLM 0.32) lacks two things that only matter across hosts:

- it names no Ray resource, so the Ray executor cannot place a rank. Here a rank takes the logical ``GPU`` that every
  node offers (``ray start --num-gpus 1``), as on a Spark;
- its communicator believes that all ranks share ``/dev/shm`` as soon as their group names agree, and dies in "open shm
  in SHMManager failed" when they sit on different hosts.

It also saves imports, which are most of the start on two cores: the model class is looked at in the process itself (the
stock code starts another, lest CUDA be initialized), and the engine core is forked as on a GPU, not spawned.

vLLM finds the plug-in through the entry point group ``vllm.platform_plugins``. Nothing of vLLM is imported before it
asks for the platform class.
"""

# ruff: noqa: PLC0415 -- imported where they exist: in the engine environment
from __future__ import annotations

import os
import socket
from typing import Any

PLATFORM = "SparkCpuPlatform"
COMMUNICATOR = "SparkCpuCommunicator"


def register() -> str:
    return f"{__name__}.{PLATFORM}"


def _platform() -> type[Any]:
    from vllm.platforms.cpu import CpuPlatform

    class SparkCpuPlatform(CpuPlatform):
        ray_device_key = "GPU"

        @classmethod
        def pre_register_and_update(cls, parser: Any = None) -> None:
            from vllm.model_executor.models import registry

            super().pre_register_and_update(parser)
            registry._run_in_subprocess = lambda function: function()

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            super().check_and_update_config(vllm_config)
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

        @classmethod
        def get_device_communicator_cls(cls) -> str:
            return f"{__name__}.{COMMUNICATOR}"

    return SparkCpuPlatform


def _communicator() -> type[Any]:
    import torch.distributed
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    class SparkCpuCommunicator(CpuCommunicator):
        def _all_group_ranks_share_shm_group_name(self) -> bool:
            names: list[Any] = [None] * self.world_size
            torch.distributed.all_gather_object(names, socket.gethostname(), group=self.device_group)
            return len(set(names)) == 1 and super()._all_group_ranks_share_shm_group_name()

    return SparkCpuCommunicator


_MAKERS = {PLATFORM: _platform, COMMUNICATOR: _communicator}


def __getattr__(name: str) -> Any:
    if name not in _MAKERS:
        raise AttributeError(name)
    made = _MAKERS[name]()
    made.__qualname__ = made.__name__ = name
    made.__module__ = __name__
    globals()[name] = made
    return made
