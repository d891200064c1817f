# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Texts by their likeness to a question, for models of embeddings: ``python3 embeddings.py QUESTION TEXT ...``"""

import math
import operator
import sys

from openai import OpenAI

question, *texts = sys.argv[1:] if len(sys.argv) > 2 else ["a pet", "a cat sleeps", "a train is late"]
client = OpenAI(timeout=600)
found = client.embeddings.create(model=client.models.list().data[0].id, input=[question, *texts])
asked, *others = (entry.embedding for entry in sorted(found.data, key=lambda entry: entry.index))


def likeness(one: list[float], other: list[float]) -> float:
    return sum(map(operator.mul, one, other)) / (math.hypot(*one) * math.hypot(*other))


for text, vector in sorted(zip(texts, others, strict=True), key=lambda pair: -likeness(asked, pair[1])):
    print(f"{likeness(asked, vector):.3f}  {text}")
