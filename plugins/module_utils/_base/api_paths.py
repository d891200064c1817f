# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Paths of OpenAI's and Anthropic's API that engines answer at, and what each is for. An engine that has not got one
says so itself."""

from __future__ import annotations

from collections.abc import Mapping

MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"  # of texts that go through no chat template
MESSAGES = "/v1/messages"  # Anthropic's
RESPONSES = "/v1/responses"  # OpenAI's second one, whose events have names
# A recipe's task by path; the first of a task is where it is probed.
TASKS: Mapping[str, str] = {
    "/v1/chat/completions": "generate",
    COMPLETIONS: "generate",
    "/v1/embeddings": "embed",
    "/v1/rerank": "rank",
    "/v1/score": "rank",
    RESPONSES: "generate",
    MESSAGES: "generate",
    f"{MESSAGES}/count_tokens": "generate",
}
# Whose prompts an engine keeps, computed, for the next request that begins alike.
PROMPTS = tuple(path for path, task in TASKS.items() if task == "generate" and not path.endswith("/count_tokens"))
PROBED: Mapping[str, str] = {
    task: next(path for path in TASKS if TASKS[path] == task) for task in dict.fromkeys(TASKS.values())
}
