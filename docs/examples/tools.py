# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model that calculates with a tool: ``python3 tools.py What is 17.5 percent of 1234?``

What a model writes is text of a stranger. It is never run: the tool has four operations, and two numbers each. The
recipe has to name a parser for tool calls (``tool-call-parser``; ``plan.yml`` shows the options).
"""

import json
import math
import operator
import sys

from openai import OpenAI

MAX_ROUNDS = 8
OPERATIONS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "One operation on two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": list(OPERATIONS)},
                "a": {"type": "number"},
                "b": {"type": "number"},
            },
            "required": ["operation", "a", "b"],
        },
    },
}


def calculate(arguments: str) -> str:
    """The result for the model, or what was wrong with its call."""
    try:
        asked = json.loads(arguments)
        result = OPERATIONS[asked["operation"]](float(asked["a"]), float(asked["b"]))
    except (ValueError, KeyError, TypeError, ZeroDivisionError, OverflowError, RecursionError) as exc:
        return f"error: {type(exc).__name__}"
    return repr(result) if math.isfinite(result) else "error: too large"


def ask(client: OpenAI, model: str, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    for _round in range(MAX_ROUNDS):
        answer = client.chat.completions.create(model=model, messages=messages, tools=[CALCULATE], max_tokens=512)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            known = call.function.name == "calculate"
            result = calculate(call.function.arguments) if known else "error: there is no such tool"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return f"no answer after {MAX_ROUNDS} rounds"


if __name__ == "__main__":
    client = OpenAI(timeout=3600)
    question = " ".join(sys.argv[1:]) or "What is 17.5 percent of 1234?"
    print(ask(client, client.models.list().data[0].id, question))
