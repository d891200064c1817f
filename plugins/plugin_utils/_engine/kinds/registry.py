# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engines there are, by name."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import (
    command,
    sglang,
    tensorrt_llm,
    vllm,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine

# Of which options and memory are known.
ENGINES: dict[str, Engine] = {engine.name: engine for engine in (vllm.ENGINE, sglang.ENGINE, tensorrt_llm.ENGINE)}
KINDS: dict[str, Engine] = {**ENGINES, command.ENGINE.name: command.ENGINE}  # that a recipe may name
