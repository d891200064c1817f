# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Collectives of NCCL, timed: runs in the engine's own Python, which has torch, once per node at the same time.

The same library in the same environment as the ranks of the engine, and no compiler, MPI or ssh. Its text is what
``_nccl.run`` starts there, so this file needs nothing of ours. Rank 0 prints one line per test, the fields
of ``_nccl.results.Results``: sizes, times and rates are counted as nccl-tests does, with float32.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

FEWEST = 3  # times that a size is repeated at least


def main(words: str) -> None:
    asked = json.loads(words)
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    rank, ranks = asked["rank"], asked["ranks"]
    dist.init_process_group(
        backend,
        init_method=f"tcp://{asked['store']}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=asked["timeout"]),
    )
    version = torch.cuda.nccl.version() if cuda else ()
    for test in asked["tests"]:
        rows = []
        size = asked["smallest"]
        while size <= asked["largest"]:
            rows.append(Size((torch, dist), device, test, size, (rank, ranks)).measure(asked["most"], asked["seconds"]))
            size *= asked["factor"]
        report = {
            "test": test,
            "rows": rows,
            "ranks": ranks,
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "average_gbs": sum(row["bus_gbs"] for row in rows) / max(len(rows), 1),
            "nccl": ".".join(map(str, version)),
            "backend": backend,
        }
        if rank == 0:
            sys.stdout.write(f"\n{json.dumps(report)}\n")
            sys.stdout.flush()
    dist.destroy_process_group()


class Size:
    """One size of one test. ``size`` is what nccl-tests calls it: of all_gather, what every rank has in the end."""

    def __init__(self, libraries: tuple[Any, Any], device: Any, test: str, size: int, ranks: tuple[int, int]) -> None:
        self.torch, self.dist = libraries
        self.rank, count = ranks
        # Its name since torch 2.14, and before.
        self.gather = getattr(self.dist, "all_gather_single", None) or self.dist.all_gather_into_tensor
        self.device, self.test = device, test
        self.part = max(size // 4 // count, 1)  # elements
        self.whole = self.torch.empty(self.part * count, dtype=self.torch.float32, device=device)
        self.size = self.part * count * 4
        gather = test == "all_gather"
        self.own = self.torch.empty(self.part, dtype=self.torch.float32, device=device) if gather else self.whole
        self.run: Callable[[], None] = self._gather if gather else self._reduce
        self.expected = [number + 1.0 for number in range(count)] if gather else [count * (count + 1) / 2.0] * count
        self.share = (count - 1) / count * (1 if gather else 2)  # of the size that a rank sends

    def _gather(self) -> None:
        self.gather(self.whole, self.own)

    def _reduce(self) -> None:
        self.dist.all_reduce(self.whole)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def wrong(self) -> int:
        """Elements with another value than the collective has to give, of one run. It is the warm-up, too."""
        self.own.fill_(self.rank + 1.0)
        self.run()
        self._wait()
        parts = self.whole.split(self.part)
        wrong = sum(int((part != value).sum()) for part, value in zip(parts, self.expected))
        found = self.torch.tensor([wrong], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(found)
        return int(found)

    def _seconds(self, times: int) -> float:
        self.dist.barrier()
        self._wait()
        start = time.perf_counter()
        for _each in range(times):
            self.run()
        self._wait()
        return (time.perf_counter() - start) / times

    def measure(self, most: int, seconds: float) -> dict[str, Any]:
        """``most``: repetitions, fewer where they would take more than ``seconds``."""
        wrong = self.wrong()
        self.own.zero_()  # sums of sums would leave the numbers
        repeated = min(max(int(seconds / max(self._seconds(1), 1e-9)), FEWEST), most)
        times = self.torch.tensor([repeated], dtype=self.torch.int64, device=self.device)
        self.dist.broadcast(times, 0)
        taken = self._seconds(int(times))
        rate = self.size / taken / 1e9
        return {
            "bytes": self.size,
            "microseconds": taken * 1e6,
            "algorithm_gbs": rate,
            "bus_gbs": rate * self.share,
            "wrong": wrong,
        }


if __name__ == "__main__":
    main(sys.argv[1])
