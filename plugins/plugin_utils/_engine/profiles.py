# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Profiles: what a cluster is used for, laid over any recipe. What an engine adds to one is in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe


@dataclass(frozen=True)
class Profile:
    """``context`` is what the recipe's is raised to where the model can; ``at_most`` is what it is lowered to."""

    description: str
    concurrency: int
    context: int = 0
    at_most: int = 0
    batched: int = 0  # tokens that are computed in one step; 0: the engine's default
    throughput: bool = False


PROFILES: Mapping[str, Profile] = {
    "chatbot": Profile("short answers for several people", concurrency=8, at_most=16384, batched=4096),
    "agentic": Profile(
        "long prompts that grow from call to call, with tools",
        concurrency=4,
        context=65536,
        batched=4096,
    ),
    "batch": Profile(
        "many requests at once; the speed of one does not matter",
        concurrency=32,
        at_most=8192,
        batched=8192,
        throughput=True,
    ),
    # 2048 tokens in one step keep the prefill's activations small: reports of frozen hosts are about long prefills.
    "long_context": Profile("few very long prompts", concurrency=1, context=131072, batched=2048),
}


def context_of(profile: Profile, recipe: Recipe) -> int:
    """Tokens of the longest request: of the profile, as far as the model goes."""
    limit = recipe.architecture.max_context or recipe.context
    wanted = max(recipe.context, profile.context)
    return min(wanted, limit, profile.at_most or wanted)
