# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How an engine reads the weights (its ``load-format``): how fast, and what that takes of the memory.

Figures are what others have published of Sparks, cold, each the median of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1024**3
# While it reads through the page cache, pages and staging buffers come on top: 17 to 19 GiB for 90 GiB (field).
PAGES_SHARE, PAGES_MIN, PAGES_MAX = 0.20, 2 * GIB, 19 * GIB


@dataclass(frozen=True)
class Loader:
    """``gb_per_s``: of one machine's disk. ``kept``: bytes of buffers that the engine counts as used. ``direct``: past
    the page cache. ``divided``: each rank reads another part of the files, and the others get it over the fabric; else
    each reads all of them."""

    gb_per_s: float
    source: str
    kept: int = 0
    direct: bool = False
    divided: bool = False

    def pages(self, weights: int) -> int:
        """Bytes on top of the weights while they are read. fastsafetensors 0.5 needs them for the file that it copies,
        which it holds whole; files of 5 GB are usual."""
        return 0 if self.direct else int(min(PAGES_MAX, max(PAGES_MIN, PAGES_SHARE * weights)))

    def seconds(self, files: float, ranks: int) -> float:
        """``files``: bytes of the whole model."""
        return files / (ranks if self.divided else 1) / (self.gb_per_s * 1e9)


MAPPED = Loader(  # safetensors, mapped into memory: what engines do by themselves
    0.33,
    "0.12 (NVIDIA forum 361819, 67 GB in a start of 9 min), 0.14 (forum 349886, about 80 GB in 9:19), 0.33"
    " (spark-vllm-docker 377, about 198 GB in 10 min, 2026-09), 0.35 and 0.60 (GLM-5.3-Flash-EXL3-2x-DGX-Sparks 228 and"
    " 204, 176 GB in 507 and 293 s, 2026-09)",
)
LOADERS: Mapping[str, Loader] = {
    "fastsafetensors": Loader(
        0.43,
        "0.30 (spark-vllm-docker 200, 42 files of 0.9 GB at 3.0 s each, 2026-04), 0.56 (forum 361819, 67 GB in a start"
        " of 2 min); buffers fitted to spark-vllm-docker 396",
        kept=2 * GIB,
        divided=True,
    ),
    "instanttensor": Loader(
        2.0,
        "two machines each: 1.3 (GLM-5.3-Flash-EXL3-2x-DGX-Sparks 204, 176 GB in 66 to 69 s cold, three runs, 2026-09),"
        " 2.0 (spark-vllm-docker 377, about 198 GB in 50 s, 2026-09), 2.3 (228 of the former, 176 GB in 38.7 s,"
        " 2026-09); buffers 4.4 to 5.6 GiB in runs that differ in the loader alone (204)",
        kept=int(4.5 * GIB),
        direct=True,
        divided=True,
    ),
}
DIRECT = "instanttensor"


def of(load_format: str) -> Loader:
    """Formats that nobody has measured on a Spark count as what engines do by themselves."""
    return LOADERS.get(load_format, MAPPED)
