# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A question about a picture, for models that see: ``python3 vision.py photo.jpg What is this?``

The picture goes with the request. The engine fetches none by URL, which this collection forbids it.
"""

import base64
import mimetypes
import pathlib
import sys

from openai import OpenAI

if len(sys.argv) < 2:
    sys.exit("usage: vision.py PICTURE [QUESTION]")
picture = pathlib.Path(sys.argv[1])
kind = mimetypes.guess_type(picture.name)[0] or "image/png"
data = f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"
question = " ".join(sys.argv[2:]) or "What is in this picture?"

client = OpenAI(timeout=3600)
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": question}],
        }
    ],
    max_tokens=256,
)
print(answer.choices[0].message.content)
