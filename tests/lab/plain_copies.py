# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A vLLM plug-in for the lab: the connector that keeps computed prompts on disk, on a CPU.

vLLM (0.32) refuses a CPU there only because its worker copies as CUDA does. With plain copies in its place all the rest
runs as on a GPU: scheduler, memory in /dev/shm, threads and files. ``test_prefix_cache.py`` puts this file where the
engine's ``PYTHONPATH`` leads, with an entry point of the group ``vllm.general_plugins``.
"""

# ruff: noqa: PLC0415 -- imported where they exist: in the engine environment
from __future__ import annotations

from typing import Any


def install() -> None:
    import torch
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    class PlainCopies(OffloadingWorker):
        def __init__(self, caches: Any, region: Any) -> None:
            self.region = region
            self.pairs = [
                (
                    one.tensor.view(torch.int8).view(one.tensor.shape[0], -1),
                    region.create_next_worker_view(one.page_size_bytes),
                )
                for one in caches.tensors
            ]
            self.done: list[Any] = []

        def _copy(self, job: int, source: Any, target: Any, store: bool) -> bool:
            taken, given = (torch.as_tensor(spec.block_ids.astype("int64")) for spec in (source, target))
            size = 0
            for of_engine, beside in self.pairs:
                if store:
                    beside[given] = of_engine[taken]
                else:
                    of_engine[given] = beside[taken]
                size += of_engine.shape[1] * len(taken)
            self.done.append(TransferResult(job, True, size, 0.001))
            return True

        def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
            return self._copy(job_id, src_spec, dst_spec, store=True)

        def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
            return self._copy(job_id, src_spec, dst_spec, store=False)

        def get_finished(self) -> list[Any]:
            done, self.done = self.done, []
            return done

        def wait(self, job_ids: set[int]) -> None:
            pass

        def shutdown(self) -> None:
            self.pairs = []
            self.region.cleanup()

    def get_worker(self: Any, kv_caches: Any) -> Any:
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = PlainCopies(kv_caches, region)
        return self._worker

    TieringOffloadingSpec.get_worker = get_worker
