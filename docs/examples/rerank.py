# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The same with a reranker, which reads question and text together: ``python3 rerank.py QUESTION TEXT ...``

OpenAI's client has no word for it; ``/v1/rerank`` is that of Jina and Cohere, which vLLM and SGLang speak.
"""

import sys
from typing import Any

from openai import OpenAI

question, *texts = sys.argv[1:] if len(sys.argv) > 2 else ["a pet", "a cat sleeps", "a train is late"]
client = OpenAI(timeout=600)
body = {"model": client.models.list().data[0].id, "query": question, "documents": texts}
answer: Any = client.post("/rerank", body=body, cast_to=object)
for result in sorted(answer["results"], key=lambda result: -result["relevance_score"]):
    print(f"{result['relevance_score']:.3f}  {texts[result['index']]}")
