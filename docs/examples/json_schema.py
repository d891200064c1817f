# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An answer that is JSON of a schema, whatever the model would like to say: ``python3 json_schema.py A fine hotel.``

The engine lets through only tokens that fit. Numbers and texts without a bound may go on until ``max_tokens``, so the
schema bounds them, and the answer is read only where it is whole.
"""

import json
import sys

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"type": "string", "enum": ["good", "mixed", "bad"]},
        "stars": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
    },
    "required": ["mood", "stars"],
    "additionalProperties": False,
}

client = OpenAI(timeout=3600)
model = client.models.list().data[0].id
review = " ".join(sys.argv[1:]) or "The room was small, and the breakfast was wonderful."
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": f"Judge this review of a hotel, as JSON: {review}"}],
    response_format={"type": "json_schema", "json_schema": {"name": "review", "schema": SCHEMA, "strict": True}},
    max_tokens=256,
)
choice = answer.choices[0]
if choice.finish_reason != "stop":
    sys.exit(f"the answer is not whole ({choice.finish_reason}): {choice.message.content}")
print(json.loads(choice.message.content))
