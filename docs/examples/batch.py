# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Many prompts at once: ``python3 batch.py < prompts.txt > answers.jsonl``, one prompt a line.

A few run at the same time. One that fails is tried again by the client, later each time, where that may help (no
connection, 408, 409, 429, 5xx). The answers come in the order of the prompts; a prompt that fails for good has an
``error`` and does not end the others.
"""

import concurrent.futures
import json
import os
import sys

from openai import OpenAI, OpenAIError

client = OpenAI(timeout=3600, max_retries=8)
model = client.models.list().data[0].id


def answer(prompt: str) -> dict[str, str]:
    try:
        said = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_tokens=512
        )
    except OpenAIError as exc:
        return {"prompt": prompt, "error": str(exc)}
    return {"prompt": prompt, "answer": said.choices[0].message.content or ""}


prompts = [line.strip() for line in sys.stdin if line.strip()]
failed = 0
with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "8"))) as pool:
    for result in pool.map(answer, prompts):
        failed += "error" in result
        print(json.dumps(result, ensure_ascii=False), flush=True)
sys.exit(f"{failed} of {len(prompts)} prompts failed" if failed else 0)
