#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What OpenAI's and Anthropic's own client libraries see of the gateway while an engine ends and comes back.

    python3 -m venv clients && clients/bin/pip install openai anthropic pyyaml jinja2 ansible-core
    clients/bin/python tests/bench/relay_clients.py --nginx /usr/sbin/nginx

The engine is a stand-in that speaks four paths and ends where a prompt says so; nginx and relay are the role's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

CHAT, RESPONSES, MESSAGES, COUNT = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
DELTA = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
RESPONSE = {
    "id": "r", "object": "response", "created_at": 1, "model": "tiny", "output": [], "parallel_tool_calls": False,
    "tool_choice": "auto", "tools": [], "status": "in_progress",
}  # fmt: skip
MESSAGE: dict[str, Any] = {
    "id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0},
}  # fmt: skip


def events(path: str) -> list[tuple[str, Any]]:
    """Of a stream of two words."""
    if path == CHAT:
        made = [{**DELTA, "choices": [{"index": 0, "delta": {"content": word}}]} for word in ("one ", "two")]
        end = {**DELTA, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        return [("", one) for one in (*made, end)] + [("", "[DONE]")]
    if path == RESPONSES:
        text = {"item_id": "i", "output_index": 0, "content_index": 0, "logprobs": []}
        found: list[tuple[str, Any]] = [("response.created", {"response": RESPONSE})]
        found += [("response.output_text.delta", {**text, "delta": word}) for word in ("one ", "two")]
        found.append(("response.completed", {"response": {**RESPONSE, "status": "completed"}}))
        return [(name, {"type": name, "sequence_number": number, **one}) for number, (name, one) in enumerate(found)]
    found = [("message_start", {"message": MESSAGE})]
    found.append(("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}))
    for word in ("one ", "two"):
        found.append(("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}}))
    found.append(("content_block_stop", {"index": 0}))
    usage = {"output_tokens": 2, "input_tokens": 3}
    found.append(("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}))
    found.append(("message_stop", {}))
    return [(name, {"type": name, **one}) for name, one in found]


def whole(path: str) -> Any:
    if path == CHAT:
        choice = {"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}
        return {**DELTA, "object": "chat.completion", "choices": [choice]}
    if path == RESPONSES:
        part = {"type": "output_text", "text": "one two", "annotations": []}
        item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [part]}
        return {**RESPONSE, "status": "completed", "output": [item]}
    if path == COUNT:
        return {"input_tokens": 3}
    return {**MESSAGE, "content": [{"type": "text", "text": "one two"}], "stop_reason": "end_turn"}


async def engine(port: int, at: str) -> None:
    """A prompt with ``dies early`` ends the process once before a token, ``dies late`` after the first word."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1].partition("?")[0]
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}
        text = await reader.readexactly(int(fields.get("content-length") or 0))
        asked = json.loads(text or b"{}")
        if b"dies early" in text and not os.path.exists(
            mark := f"{at}/died-{path.replace('/', '-')}-{'stream' in asked}"
        ):
            Path(mark).touch()
            os.kill(os.getpid(), 9)
        status, kind = "200 OK", "application/json"
        if fields.get("authorization", "").startswith("Bearer key-of-the-engine") is False:
            status, answer = "401 Unauthorized", b"{}"
        elif path == "/v1/models":
            answer = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
        elif asked.get("stream"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for name, document in events(path):
                line = document if isinstance(document, str) else json.dumps(document)
                event = f"{f'event: {name}{chr(10)}' if name else ''}data: {line}\n\n".encode()
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                if b"dies late" in text and "one " in line:
                    await asyncio.sleep(0.2)
                    os.kill(os.getpid(), 9)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            writer.close()
            return
        else:
            answer = json.dumps(whole(path)).encode()
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


def check(what: str, found: object, wanted: object) -> None:
    print(f"{'ok   ' if found == wanted else 'WRONG'} {what}: {found!r}")
    if found != wanted:
        raise SystemExit(1)


def measure(here: Any, key: str) -> None:
    import anthropic  # noqa: PLC0415
    import openai  # noqa: PLC0415

    base = f"http://127.0.0.1:{here.port}"
    one = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=60)
    other = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=60)  # shown as X-Api-Key
    check("the list of models", [model.id for model in one.models.list()], ["tiny"])
    for prompt in ("hello", "dies early"):
        prompts = [{"role": "user", "content": prompt}]
        chat: Any = {"model": "tiny", "messages": prompts}
        message: Any = {**chat, "max_tokens": 9}
        check(f"chat, {prompt}", one.chat.completions.create(**chat).choices[0].message.content, "one two")
        words = [part.choices[0].delta.content or "" for part in one.chat.completions.create(**chat, stream=True)]
        check(f"chat, streamed, {prompt}", "".join(words), "one two")
        check(f"responses, {prompt}", one.responses.create(model="tiny", input=prompt).output_text, "one two")
        parts = one.responses.create(model="tiny", input=prompt, stream=True)
        words = [part.delta for part in parts if part.type == "response.output_text.delta"]
        check(f"responses, streamed, {prompt}", "".join(words), "one two")
        check(f"messages, {prompt}", other.messages.create(**message).content[0].text, "one two")
        with other.messages.stream(**message) as stream:
            check(f"messages, streamed, {prompt}", stream.get_final_text(), "one two")
        check(f"count_tokens, {prompt}", other.messages.count_tokens(**chat).input_tokens, 3)
    held = one.chat.completions.with_raw_response.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}]
    ).headers.get("x-sparkmatrix-held")
    check("a header where nothing waited", held, None)
    late = [{"role": "user", "content": "dies late"}]
    calls: list[tuple[str, Any, Any]] = [
        ("chat", openai.APIError, lambda: list(one.chat.completions.create(model="tiny", messages=late, stream=True))),
        (
            "responses",
            openai.APIError,
            lambda: list(one.responses.create(model="tiny", input="dies late", stream=True)),
        ),
        (
            "messages",
            anthropic.APIError,
            lambda: list(other.messages.create(model="tiny", messages=late, max_tokens=9, stream=True)),
        ),
    ]
    for name, kind, call in calls:
        try:
            call()
            said = "whole"
        except kind as exc:
            said = f"{exc}"
        check(f"{name} that broke says so", "The engine ended in the middle of this answer" in said, True)
    for name, kind, call in (
        ("openai", openai.AuthenticationError, openai.OpenAI(base_url=f"{base}/v1", api_key="x").models.list),
        (
            "anthropic",
            anthropic.AuthenticationError,
            lambda: anthropic.Anthropic(base_url=base, api_key="x").messages.create(**message),
        ),
    ):
        try:
            call()
            said = "let in"
        except kind as exc:
            said = str(exc)
        check(f"{name} is told of a wrong key", "The API key is missing or wrong" in said, True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nginx", default="/usr/sbin/nginx")
    parser.add_argument("--engine", nargs=2, default=())
    asked = parser.parse_args()
    if asked.engine:
        asyncio.run(engine(int(asked.engine[1]), asked.engine[0]))
        return
    import gateway_here  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as at:
        stand_in = [sys.executable, __file__, "--engine", at]
        with gateway_here.gateway(at, asked.nginx, stand_in, 18721, 18720) as here:
            measure(here, gateway_here.KEY)


if __name__ == "__main__":
    main()
