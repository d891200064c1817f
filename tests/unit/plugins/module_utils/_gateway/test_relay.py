# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The relay between real sockets: which engine, what passes, what waits, what is never sent twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import relay_engine as e
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay as r
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_hold, relay_upstream
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_http as http
from fake_engine import free_port
from relay_engine import Engine, Request, Writer, answer, chunk, house, relayed, served, token, until

PROBES = {"X_Sparkmatrix_Client": "probe"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_hold, "LOOK_S", 0.01)
    monkeypatch.setattr(relay_hold, "TRY_S", 0.05)
    monkeypatch.setattr(relay_upstream, "DEATH_S", 0.3)


async def says_yes(request: Request, writer: Writer) -> None:
    if request.line.startswith("GET /v1/models "):
        writer.write(answer({"data": [{"id": "tiny"}, {"id": "tiny-lora"}]}))
    else:
        writer.write(answer({"bytes": len(request.body)}))


async def streams(_request: Request, writer: Writer) -> None:
    writer.write(e.STREAM)
    for number in range(5):
        writer.write(chunk(token(number)))
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(chunk("data: [DONE]\n\n") + b"0\r\n\r\n")


# -- what passes


async def test_an_answer_and_a_stream_pass_as_they_are(tmp_path: Path) -> None:
    async with relayed(tmp_path, says_yes) as (engine, at):
        told = await at.ask(body=b'{"x": 1}', Authorization="Bearer of-a-client", X_Api_Key="too", X_Kept="yes")
        assert (told.status, told.json, told.whole) == (200, {"bytes": 8}, True)
        seen = engine.seen[0]
        assert seen.line == f"POST {e.CHAT} HTTP/1.1"
        assert seen.fields["authorization"] == "bearer key-of-the-engine" and seen.fields["x-kept"] == "yes"
        assert seen.fields["host"] == f"127.0.0.1:{engine.port}" and "x-api-key" not in seen.fields
        assert "x-sparkmatrix-held" not in told.fields
        engine.does = streams
        told = await at.ask()
        assert told.whole and told.body.decode() == "".join(map(token, range(5))) + "data: [DONE]\n\n"
        large = await at.ask(body=b"[" + b" " * 4_000_000 + b"]")
        assert large.status == 200 and len(engine.seen[-1].body) == 4_000_002
        assert not at.relay.open and at.relay.held.now == 0


@pytest.mark.parametrize(
    ("said", "body", "whole"),
    [
        (e.head("204 No Content"), b"", True),
        (e.head("200 OK", "Content-Length: 0"), b"", True),
        (e.head("100 Continue") + answer([1]), b"[1]", True),
        (e.head("200 OK", "Content-Type: text/plain") + b"until the end", b"until the end", True),
        (e.head("200 OK", "Transfer-Encoding: chunked") + b"3;x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", b"abc", True),
        (e.head("200 OK", "Transfer-Encoding: chunked") + b"0\r\n\r\n", b"", True),
        (e.head("200 OK", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n", b"abc", False),
        (e.head("200 OK", f"Content-Length: {relay_upstream.SMALL + 1}") + b"x" * 100_000, b"x" * 100_000, False),
        (e.head("429 Too Many Requests", "Content-Length: 2") + b"{}", b"{}", True),
        (answer({"error": "no"}, "400 Bad Request"), b'{"error": "no"}', True),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
async def test_every_way_a_body_may_end(tmp_path: Path, said: bytes, body: bytes, whole: bool, piece: int) -> None:
    async def does(_request: Request, writer: Writer) -> None:
        for at in range(0, min(len(said), 400), piece):
            writer.write(said[at : at + piece] if at + piece < 400 else said[at:])
            await asyncio.sleep(0)

    async with relayed(tmp_path, does) as (engine, at):
        told = await at.ask()
        assert (told.body, told.whole) == (body, whole)
        assert len(engine.seen) == 1


async def test_a_client_that_reads_slowly_slows_the_engine(tmp_path: Path) -> None:
    written = 0

    async def does(_request: Request, writer: Writer) -> None:
        nonlocal written
        writer.write(e.STREAM)
        while written < 100_000_000:
            writer.write(chunk(token(0) * 1000))
            written += 60_000
            await writer.drain()

    async with relayed(tmp_path, does) as (engine, at):
        reader, writer = await at.connect()
        await reader.readline()
        await asyncio.sleep(0.3)
        stood = written
        await asyncio.sleep(0.2)
        assert stood == written < 50_000_000
        writer.transport.abort()
        await asyncio.sleep(0.05)
        assert not engine.writers, "the engine is told that nobody waits"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nX : y\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n", 413),
        (b"POST /v1/x HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, 400),
    ],
)
async def test_what_is_no_request(tmp_path: Path, sent: bytes, status: int) -> None:
    async with relayed(tmp_path, says_yes) as (engine, at):
        reader, writer = await asyncio.open_unix_connection(at.place)
        writer.write(sent)
        assert (await e.read(reader)).status == status
        assert not engine.seen


# -- which engine


BODIES = [
    (b'{"model": "tiny"}', "tiny"),
    (b'{"model": "embed"}', "embed"),
    (b'{"messages": [{"model": "tiny"}], "model": "\\u0065mbe\\u0064"}', "embed"),
    (b'{"model": "tiny", "model": "embed"}', "embed"),
    (b'{"model": "embed-lora"}', "embed"),
    (b"{}", "model_required"),
    (b'{"model": 1}', "model_required"),
    (b'["tiny"]', "invalid_json"),
    (b"null", "invalid_json"),
    (b"", "invalid_json"),
    (b"--boundary", "invalid_json"),
    (b'{"model": "tiny"', "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b'{"model": "tiny", "a": ' + b"[" * 499 + b"]" * 499 + b"}", "tiny"),
    (b'{"model": "tiny", "a": ' + b"[" * 500 + b"]" * 500 + b"}", "invalid_json"),
    (b'{"model": ""}', "model_not_found"),
    (b"\xff\xfe{}", "invalid_json"),
    (b'{"model": "Tiny"}', "model_not_found"),
    (b'{"model": "/v1/embeddings"}', "model_not_found"),
]


@pytest.mark.parametrize(("body", "found"), BODIES, ids=lambda one: str(one)[:40])
async def test_the_model_decides(tmp_path: Path, body: bytes, found: str) -> None:
    def of(model: str) -> Any:
        async def does(request: Request, writer: Writer) -> None:
            lists = request.line.startswith("GET")
            writer.write(answer({"data": [{"id": model}, {"id": f"{model}-lora"}]} if lists else {"engine": model}))

        return does

    tiny, embed = await Engine(of("tiny")).start(), await Engine(of("embed")).start()
    refusals = {"/v1/embeddings": "This model makes no embeddings."}
    both = served(tiny, refusals=refusals), served(embed, "embedding", "embed")
    async with house(tmp_path, *both) as at:
        told = await at.ask("/v1/score", body)
        assert found in (told.json.get("engine"), told.json.get("error", {}).get("code"))
        told = await at.ask("/v1/embeddings", {"model": "tiny"})
        assert (told.status, told.code, told.json["error"]["param"]) == (404, "wrong_task", "model")
        listed = (await at.ask("/v1/models")).json
        assert [one["id"] for one in listed["data"]] == ["tiny", "tiny-lora", "embed", "embed-lora"]
        await embed.kill()
        # Listed as it was last, since what is sent to it waits; the cluster's own probe is told the truth.
        again = (await at.ask("/v1/models")).json
        assert listed == again
        assert len((await at.ask("/v1/models", **PROBES)).json["data"]) == 2
        assert (await at.ask("/v1/score", {"model": "other"})).code == "engine_unavailable"


async def test_a_name_that_two_engines_have_is_nobodys(tmp_path: Path) -> None:
    one, two = await Engine(says_yes).start(), await Engine(says_yes).start()
    async with house(tmp_path, served(one), served(two, "embedding", "embed")) as at:
        told = await at.ask(body={"model": "tiny-lora"})
        assert (told.status, told.code) == (400, "model_ambiguous")
        assert "chat and embedding" in told.json["error"]["message"]
        assert (await at.ask(body={"model": "tiny"})).status == 200, "what the plan says is said once"


async def test_what_one_engine_lists_takes_the_list_of_others_from_nobody(tmp_path: Path) -> None:
    async def strange(_request: Request, writer: Writer) -> None:
        writer.write(answer({"data": [{"id": ["x"]}, {"id": {}}, {}, {"id": "strange"}]}))

    one, two = await Engine(says_yes).start(), await Engine(strange).start()
    async with house(tmp_path, served(one), served(two, "embedding", "embed")) as at:
        told = await at.ask("/v1/models")
        assert [entry["id"] for entry in told.json["data"]] == ["tiny", "tiny-lora", "strange"]


async def test_the_engines_key_is_the_gateways_to_blame(tmp_path: Path) -> None:
    async def does(_request: Request, writer: Writer) -> None:
        writer.write(answer({"error": "Unauthorized"}, "401 Unauthorized"))

    async with relayed(tmp_path, does) as (_engine, at):
        for path in (e.CHAT, "/v1/models"):
            told = await at.ask(path)
            assert (told.status, told.code) == (502, "gateway_misconfigured")


async def test_whoever_leaves_while_it_is_connected_leaves_no_trace(tmp_path: Path) -> None:
    """A client that comes and goes would fill the journal."""
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, found: failed.append(found))

    async def says_nothing(_request: Request, _writer: Writer) -> None:
        await asyncio.sleep(5)

    async with relayed(tmp_path, says_nothing) as (engine, at):
        exchange = r.Exchange(at.relay)
        exchange.head = http.request_head(b"POST /v1/completions HTTP/1.1")
        for turns in range(60):
            upstream = relay_upstream.Upstream(exchange, at.relay.gates[0][1])
            asked = asyncio.ensure_future(upstream.ended(served(engine)))
            for _turn in range(turns % 12):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(0.1)
    assert failed == []


# -- what waits


def fails_first(*fates: Any) -> Any:
    """One fate for each request, then an answer."""
    left = list(fates)

    async def does(request: Request, writer: Writer) -> None:
        if left:
            fate = left.pop(0)
            if isinstance(fate, bytes):
                writer.write(fate)
            elif fate == "reset":
                writer.transport.abort()
        else:
            await streams(request, writer)

    return does


PRELUDE = chunk('event: response.created\ndata: {"type": "response.created"}\n\n')


@pytest.mark.parametrize(
    "fates",
    [
        ["reset"],
        ["close"],
        ["reset", "reset"],
        [e.STREAM],
        [e.STREAM + chunk(": ping\r\n\r\n")],
        [e.STREAM + PRELUDE],
        [e.STREAM + b"40\r\ndata: {"],
        [e.head("200 OK", "Content-Length: 100")],
        [e.head("503 Service Unavailable", "Content-Length: 0")] * 5,
        [b"HTTP/1.1 200"],
        [b"SSH-2.0-none\r\n\r\n"],
    ],
    ids=lambda fates: str(fates)[:50],
)
async def test_what_has_had_no_token_is_sent_again(tmp_path: Path, fates: list[Any]) -> None:
    engine = await Engine(fails_first(*fates)).start()
    word.tell("loading", root=str(tmp_path))
    async with house(tmp_path, served(engine)) as at:
        told = await at.ask()
        assert told.whole and told.body.endswith(b"[DONE]\n\n") and told.body.count(b"w0 ") == 1
        assert float(told.fields["x-sparkmatrix-held"]) >= 0
        assert len(engine.seen) == len(fates) + 1 and len({one.body for one in engine.seen}) == 1
        assert at.relay.status() == {
            **at.relay.status(),
            **{"held": 0, "held_bytes": 0, "held_total": 1, "sent_again": len(fates), "broken": 0},
        }


@pytest.mark.parametrize(
    ("path", "event"), [(e.CHAT, ""), ("/v1/messages", "event: error\n"), ("/v1/responses", "event: error\n")]
)
async def test_a_stream_that_breaks_ends_with_an_error(tmp_path: Path, path: str, event: str) -> None:
    """Half an event is left out, and there is neither a [DONE] nor a last chunk: it is no short answer."""

    async def does(_request: Request, writer: Writer) -> None:
        writer.write(e.STREAM + chunk(token(0)) + chunk(token(1) + 'data: {"choi'))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with relayed(tmp_path, does) as (engine, at):
        told = await at.ask(path)
        assert not told.whole and len(engine.seen) == 1
        text = told.body.decode()
        assert text.startswith(token(0) + token(1) + event + "data: {") and text.endswith("}\n\n")
        error = json.loads(text.rpartition("data: ")[2])
        assert error["type"] == "error" and error["error"]["code"] == "engine_died"
        assert error["error"]["type"] == ("api_error" if path == "/v1/messages" else "server_error")
        assert at.relay.status()["broken"] == 1


async def test_an_answer_that_breaks_before_it_is_whole_is_an_error(tmp_path: Path) -> None:
    async with relayed(tmp_path, fails_first(e.head("200 OK", "Content-Length: 100") + b'{"half')) as (engine, at):
        told = await at.ask()
        assert (told.status, told.code, told.whole) == (502, "engine_died", True)
        assert len(engine.seen) == 1, "its first bytes had come"


ERROR_500 = answer({"error": {"message": "EngineCore has died"}}, "500 Internal Server Error")
ERROR_EVENT = e.STREAM + chunk('data: {"error": {"message": "died"}}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n"


@pytest.mark.parametrize("last", [ERROR_500, ERROR_EVENT])
@pytest.mark.parametrize("ends", [True, False])
async def test_the_last_words_of_an_engine_are_no_answer(tmp_path: Path, last: bytes, ends: bool) -> None:
    """vLLM answers 500, or the first event of a stream is the error, when its core has died; it ends a moment later."""

    async def does(_request: Request, writer: Writer) -> None:
        writer.write(last)

    async with relayed(tmp_path, does) as (engine, at):
        asked = asyncio.ensure_future(at.ask())
        while not engine.seen:
            await asyncio.sleep(0.01)
        if ends:
            await asyncio.sleep(0.02)
            await engine.kill()
            await asyncio.sleep(0.3)
            assert not asked.done()
            engine.does = streams
            await engine.start()
            assert (await asked).body.endswith(b"[DONE]\n\n") and len(engine.seen) == 2
        else:
            told = await asked
            assert b"died" in told.body and told.whole and len(engine.seen) == 1
            assert told.status == (500 if last is ERROR_500 else 200)
        # The cluster's own probes are told at once.
        if not ends:
            began = time.monotonic()
            assert b"died" in (await at.ask(**PROBES)).body and time.monotonic() - began < 0.2


async def test_a_request_that_may_be_why_it_dies_is_not_sent_for_ever(tmp_path: Path) -> None:
    async with relayed(tmp_path, fails_first(*["reset"] * 10)) as (engine, at):
        told = await at.ask()
        assert (told.status, told.code, told.fields["x-should-retry"]) == (502, "engine_died", "false")
        assert len(engine.seen) == r.SENT


@pytest.mark.parametrize("says", [b"", ERROR_500])
async def test_who_was_in_its_work_by_chance_is_not_blamed(tmp_path: Path, says: bytes) -> None:
    """An engine that dies of one request takes others along, and is there again while new ones come."""

    engine = Engine(lambda _request, _writer: asyncio.sleep(0))
    deaths = 0

    async def does(request: Request, writer: Writer) -> None:
        nonlocal deaths
        await asyncio.sleep(0.03)  # others are in its work, too
        if b"poison" in request.body:
            deaths += 1
            writer.write(says)
            await writer.drain()
            asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(engine.start()))
            await engine.kill()
        else:
            await asyncio.sleep(0.03)
            await says_yes(request, writer)

    engine.does = does
    await engine.start()
    async with house(tmp_path, served(engine), hold_s=60) as at:
        innocent = [asyncio.ensure_future(at.ask()) for _ in range(12)]
        poison = asyncio.ensure_future(at.ask(body=b'{"poison": 1}'))
        while not poison.done():
            await asyncio.sleep(0.05)
            innocent.append(asyncio.ensure_future(at.ask()))
        told = await poison
        assert (told.code, told.fields["x-should-retry"]) == ("engine_died", "false")
        assert r.SENT <= deaths <= r.SENT + 1, "its company at the first two might have been it"
        assert all(one.status == 200 for one in await asyncio.gather(*innocent))


async def test_a_live_engine_that_ends_a_connection_is_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_hold, "TRY_S", 60.0)

    async def does(request: Request, writer: Writer) -> None:
        if b"drop" in request.body:
            writer.transport.abort()
        else:
            await streams(request, writer)

    async with relayed(tmp_path, does) as (_engine, at):
        dropped = [asyncio.ensure_future(at.ask(body=b'{"drop": 1}')) for _ in range(8)]
        while not all(one.done() for one in dropped):
            assert "x-sparkmatrix-held" not in (await at.ask()).fields
        for one in dropped:
            assert (one.result().code, one.result().fields["x-should-retry"]) == ("engine_died", "false")
        assert not at.said, "it was never away"


async def test_one_look_at_the_port_serves_all_that_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_hold, "LOOK_S", 0.05)
    connected = 0

    async def does(_request: Request, writer: Writer) -> None:
        await asyncio.sleep(0.1)
        writer.write(ERROR_500)

    async with relayed(tmp_path, does) as (engine, at):
        gate = at.relay.gates[0][1]
        opens = gate.opens

        async def counted() -> bool:
            nonlocal connected
            connected += 1
            return await opens()

        gate.opens = counted
        told = await asyncio.gather(*(at.ask() for _ in range(20)))
        assert {one.status for one in told} == {500} and len(engine.seen) == 20
        assert connected <= 12, "0.3 s of looks at every 0.05 s, not 20 times"


async def test_what_an_engine_may_not_tell_nginx(tmp_path: Path) -> None:
    async def does(_request: Request, writer: Writer) -> None:
        writer.write(e.head("200 OK", "X-Accel-Charset: x", "X-SPARKMATRIX-Held: 1", "X-Kept: y", "Content-Length: 0"))

    async with relayed(tmp_path, does) as (engine, at):
        told = await at.ask(X_Accel_Buffering="yes")
        assert set(told.fields) == {"x-kept", "content-length", "connection"}
        assert "x-accel-buffering" not in engine.seen[0].fields


async def test_a_body_that_is_long_to_read_holds_nobody_up(tmp_path: Path) -> None:
    began = time.monotonic()
    deep = b'{"model": "nobody", "a": [' + (b"[" * 90 + b"]" * 90 + b",") * 20_000 + b"0]}"

    engine = await Engine(says_yes).start()
    async with house(tmp_path, served(engine), served(engine, "two", "two")) as at:
        long = [asyncio.ensure_future(at.ask(body=deep)) for _ in range(16)]
        asked = [asyncio.ensure_future(at.ask(body={"model": "tiny"})) for _ in range(8)]
        longest = 0.0
        while not all(one.done() for one in asked) or time.monotonic() < began + 0.5:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
        assert all(one.result().status == 200 for one in asked) and not any(one.done() for one in long)
        assert longest < 0.3, "the watchdog's beat comes every 10 s"
        for one in long:
            one.cancel()


async def test_the_keeper_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_hold, "TRY_S", 60.0)

    engine = Engine(streams, free_port())
    word.tell("loading", root=str(tmp_path))
    async with house(tmp_path, served(engine)) as at:
        asked = [asyncio.ensure_future(at.ask()) for _ in range(20)]
        await until(lambda: at.relay.status()["held"] == 20)
        await asyncio.sleep(0.3)  # one was sent to see, in vain
        await engine.start()
        word.tell(word.SERVING, root=str(tmp_path))
        told = await asyncio.gather(*asked)
        assert all(one.whole and float(one.fields["x-sparkmatrix-held"]) >= 0.2 for one in told)
        assert len(engine.seen) == 20
        # A planned restart: what is new waits, what runs goes on.
        running = asyncio.ensure_future(at.ask())
        await until(lambda: len(engine.seen) == 21)
        word.tell(word.DRAINING, root=str(tmp_path))
        waits = asyncio.ensure_future(at.ask())
        assert (await running).whole and "x-sparkmatrix-held" not in (await running).fields
        await asyncio.sleep(0.2)
        assert not waits.done() and len(engine.seen) == 21
        assert (await at.ask(**PROBES)).status == 200  # the keeper sees how far it is
        word.tell(word.SERVING, root=str(tmp_path))
        assert (await waits).whole
        for gone in word.GONE:
            await engine.kill()
            asked = [asyncio.ensure_future(at.ask()) for _ in range(3)]
            await asyncio.sleep(0.05)
            word.tell(gone, root=str(tmp_path))
            for told_now in await asyncio.gather(*asked):
                assert (told_now.status, told_now.code) == (503, "engine_unavailable")
            assert (await at.ask("/v1/models")).status == 503
            word.tell("loading", root=str(tmp_path))


async def test_a_keeper_that_ended_while_it_drained_is_not_waited_for(tmp_path: Path) -> None:
    engine = await Engine(streams).start()
    word.tell(word.DRAINING, root=str(tmp_path))
    long_ago = time.time() - word.DRAIN_S - 60
    os.utime(word.path(root=str(tmp_path)), (long_ago, long_ago))
    async with house(tmp_path, served(engine)) as at:
        assert "x-sparkmatrix-held" not in (await at.ask()).fields


async def test_a_fault_of_the_relay_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nginx would send it anew otherwise."""

    async with relayed(tmp_path, says_yes) as (_engine, at):
        monkeypatch.setattr(at.relay.gates[0][1], "read", lambda: 1 / 0)
        told = await at.ask()
        assert (told.status, told.code) == (500, "relay_failed") and "ZeroDivisionError" in at.said[0]


@pytest.mark.parametrize("phase", [word.SERVING, ""])
async def test_503_is_an_answer_where_no_keeper_is_starting_the_engine(tmp_path: Path, phase: str) -> None:
    """One that has too much to do says so; of an engine on another machine no keeper speaks here."""

    engine = await Engine(fails_first(*[answer({"error": "overloaded"}, "503 Service Unavailable")] * 3)).start()
    if phase:
        word.tell(phase, root=str(tmp_path))
    async with house(tmp_path, served(engine)) as at:
        assert (await at.ask()).json == {"error": "overloaded"}
        assert not at.said, "nobody else waits for it"


async def settled(relay: r.Relay, asked: Sequence[Any], over: int, held: int) -> None:
    for _look in range(1000):
        if sum(one.done() for one in asked) == over and (relay.held.now, len(relay.open)) == (held, held):
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{sum(one.done() for one in asked)} are over, {relay.held.now} held, {len(relay.open)} open")


@pytest.mark.parametrize(
    ("settings", "waiting"),
    [({"hold_s": 0}, 0), ({"hold_mib": 1}, 2), ({}, 3)],
)
async def test_the_wait_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], waiting: int
) -> None:
    monkeypatch.setattr(r, "HELD_REQUESTS", 3)

    engine = Engine(streams, free_port())
    async with house(tmp_path, served(engine), **settings) as at:
        content = b'"' + b"x" * 500_000 + b'"'
        asked = [asyncio.ensure_future(at.ask(body=content, X_Sparkmatrix_Client=name)) for name in "abcd"]
        await settled(at.relay, asked, 4 - waiting, waiting)
        refused = [one.result() for one in asked if one.done()]
        assert len(refused) == 4 - waiting and all(one.code == "engine_unavailable" for one in refused)
        assert all(one.fields["retry-after"] == "30" for one in refused)
        found = at.relay.status()
        assert (found["held"], found["refused"]) == (waiting, 4 - waiting if waiting else 0)
        assert (await at.ask(**PROBES)).status == 503  # at once
        for one in asked:
            one.cancel()
        await settled(at.relay, asked, 4, 0)
        found = at.relay.status()
        assert (found["held_bytes"], found["gave_up"]) == (0, waiting)
        if waiting:  # their places are free
            again = asyncio.ensure_future(at.ask())
            await asyncio.sleep(0.1)
            await engine.start()
            assert (await again).whole


@pytest.mark.parametrize(("size", "places"), [(10, 3), (300_000, 1), (524_280, 1)])
async def test_one_client_has_half_of_the_places_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, places: int
) -> None:
    monkeypatch.setattr(r, "HELD_REQUESTS", 6)

    async with house(tmp_path, served(Engine(streams, free_port())), hold_mib=1) as at:

        def asks(name: str) -> list[Any]:
            body = b'"' + b"x" * size + b'"'
            return [asyncio.ensure_future(at.ask(body=body, X_Sparkmatrix_Client=name)) for _ in range(places + 2)]

        greedy = asks("greedy")
        await settled(at.relay, greedy, 2, places)
        other = asks("other")
        await settled(at.relay, other, 2, 2 * places)
        for one in greedy:
            one.cancel()
        await settled(at.relay, (), 0, places)
        again = asks("greedy")  # the places of those that left are free
        await settled(at.relay, again, 2, 2 * places)
        for one in [*other, *again]:
            one.cancel()


async def test_the_wait_ends(tmp_path: Path) -> None:
    async with house(tmp_path, served(Engine(streams, free_port())), hold_s=1) as at:
        began = time.monotonic()
        told = await at.ask()
        assert (told.code, at.relay.status()["late"]) == ("engine_unavailable", 1)
        assert 0.9 < time.monotonic() - began < 5 and 0.9 < float(told.fields["x-sparkmatrix-held"]) < 5


async def test_another_configuration_keeps_what_waits(tmp_path: Path) -> None:
    engine = Engine(streams, free_port())
    one, two = served(engine), r.Served("other", "other", "127.0.0.1", free_port())
    async with house(tmp_path, one, two) as at:
        stays = asyncio.ensure_future(at.ask())
        goes = asyncio.ensure_future(at.ask(body={"model": "other"}))
        await asyncio.sleep(0.05)
        at.relay.take(r.Config((one,), mark="new"))
        assert (await goes).code == "engine_unavailable"
        assert (await at.ask(r.RELAY_STATUS)).json["configuration"] == "new"
        await engine.start()
        assert (await stays).whole


async def test_nobody_waits_for_an_engine_that_another_configuration_has_not(tmp_path: Path) -> None:
    """What is in its work meanwhile does not wait, either."""

    asked = asyncio.Event()

    async def works(_request: Request, _writer: Writer) -> None:
        asked.set()
        await asyncio.sleep(60)

    engine, other = await Engine(streams).start(), await Engine(works).start()
    async with house(tmp_path, served(engine), served(other, "other", "other")) as at:
        goes = asyncio.ensure_future(at.ask(body={"model": "other"}))
        await asked.wait()
        at.relay.take(r.Config((served(engine),)))
        await other.kill()
        assert (await asyncio.wait_for(goes, 20)).code == "engine_unavailable"


@pytest.mark.parametrize("text", ["", "[]", '{"engines": [{}]}', '{"engines": [], "other": 1}'])
def test_a_configuration_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "relay.json"
    if text:
        path.write_text(text)
    with pytest.raises(SparkError, match="Run the layer gateway"):
        r.read_config(str(path))


# -- faults


def test_random_deaths_of_an_engine_under_32_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream is answered whole, or had begun and ends with an error; none is answered twice."""
    faults, streams_at_once = int(os.environ.get("FAULTS", "100")), 32
    chance = random.Random(37)
    begun: Counter[str] = Counter()  # engines' answers by request
    ended: Counter[str] = Counter()
    errors: list[str] = []
    twice: list[str] = []

    async def does(request: Request, writer: Writer) -> None:
        name = json.loads(request.body)["name"]
        await asyncio.sleep(chance.random() * 0.02)  # the prompt is read
        writer.write(e.STREAM)
        await writer.drain()
        await asyncio.sleep(chance.random() * 0.01)
        begun[name] += 1
        for number in range(10):
            writer.write(chunk(token(number)))
            await writer.drain()
            await asyncio.sleep(chance.random() * 0.01)
        writer.write(chunk("data: [DONE]\n\n") + b"0\r\n\r\n")

    async def main() -> None:
        engine = await Engine(does).start()
        over = False
        async with house(tmp_path, served(engine), hold_s=60) as at:

            async def client(number: int) -> None:
                count = 0
                while not over:
                    count += 1
                    name = f"{number}-{count}"
                    told = await at.ask(body={"name": name})
                    text = told.body.decode()
                    if told.status != 200:
                        errors.append(f"{told.status} {text}")
                    elif told.whole:
                        ended["whole"] += 1
                        if text != "".join(map(token, range(10))) + "data: [DONE]\n\n":
                            twice.append(text)
                    else:
                        ended["broken"] += 1
                        if text.count("w0 ") != 1 or "engine_died" not in text:
                            twice.append(text)

            clients = [asyncio.ensure_future(client(number)) for number in range(streams_at_once)]
            for _ in range(faults):
                await asyncio.sleep(chance.random() * 0.15)
                await engine.kill()
                await asyncio.sleep(chance.random() * 0.05)
                await engine.start()
            over = True
            await asyncio.gather(*clients)
            assert at.relay.status()["held"] == 0 and not at.relay.open

    monkeypatch.setattr(r, "SENT", 1000)  # here no request is to blame
    asyncio.run(main())
    assert not errors and not twice
    assert min(ended["broken"], ended["whole"]) > faults / 4, "neither is rare, however busy this machine is"


def test_heads_that_contradict_themselves() -> None:
    for text in (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip", b"HTTP/1.1 200 OK\r\nContent-Length: 1x"):
        with pytest.raises(ValueError, match=r"coding|number"):
            http.Body(http.answer_head(text), b"GET")
    for text in (b"HTTP/2 200", b"HTTP/1.1 200 OK\r\n folded: x", b"HTTP/1.1 200 OK\r\nX: a\x00b"):
        with pytest.raises(ValueError, match=r"no line|no field"):
            http.answer_head(text)
