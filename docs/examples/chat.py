# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A chat whose answer is shown while it is written: ``python3 chat.py Why is the sky blue?``"""

import sys

from openai import OpenAI

client = OpenAI(timeout=3600)
model = client.models.list().data[0].id
question = " ".join(sys.argv[1:]) or "Say hello."
for chunk in client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": question}], stream=True, max_tokens=512
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
