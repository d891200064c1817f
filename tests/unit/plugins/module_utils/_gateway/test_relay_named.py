# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The relay before models that take each other's place; and who shares what an engine has computed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import relay_engine as e
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_hold, relay_named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_http as http
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import model_socket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Broken, Models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.model_socket import ModelSocket
from relay_engine import Engine, Request, Writer, answer, house, served

ONE = {"X_Sparkmatrix_Client": "one"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_hold, "LOOK_S", 0.01)
    monkeypatch.setattr(relay_hold, "TRY_S", 0.05)
    monkeypatch.setattr(relay_named, "LOOK_S", 0.01)
    monkeypatch.setattr(relay_named, "ASK_S", 0.05)
    monkeypatch.setattr(model_socket, "allowed", lambda _connection: True)


class Cluster:
    """An engine that has one of three models loaded, and what its keeper says."""

    def __init__(self, root: Path) -> None:
        (root / "run/sparkmatrix").mkdir(parents=True, exist_ok=True)
        self.root, self.loaded = root, "one"
        self.engine = Engine(self.does)
        self.keeper = ModelSocket("one", machine=Machine(str(root), now=lambda: 1000.0))
        self.keeper.plans = dict.fromkeys(("one", "two", "three"), "p")
        self.keeper.look = lambda: self.keeper.plans  # type: ignore[method-assign]
        self.say(Models("one", took={"two": 2.0}, broken={"three": Broken("p", 990.0, "x")}), 100.0)

    def say(self, models: Models, since: float | None) -> None:
        self.keeper.models, self.keeper.serves_since = models, since
        self.keeper.tell()

    async def does(self, request: Request, writer: Writer) -> None:
        if request.line.startswith("GET"):
            listed = [{"id": self.loaded, "max_model_len": 9}, {"id": f"{self.loaded}-lora", "parent": self.loaded}]
            writer.write(answer({"data": listed}))
            return
        model = json.loads(request.body)["model"]
        right = model.startswith(self.loaded)
        writer.write(answer({"of": model}) if right else answer({"error": "no such model"}, "404 Not Found"))

    async def switch(self, model: str) -> None:
        """As the keeper does it."""
        self.say(Models("one", going=model, since=1000.0, took={"two": 2.0}), None)
        word.tell(word.DRAINING, root=str(self.root))
        await asyncio.sleep(0.05)
        await self.engine.kill()
        word.tell("loading", root=str(self.root))
        await asyncio.sleep(0.1)
        self.loaded = model
        await self.engine.start()
        self.say(Models(model, took={"two": 2.0}), 1000.0)
        word.tell(word.SERVING, root=str(self.root))


@contextlib.asynccontextmanager
async def models(root: Path, **more: Any) -> AsyncIterator[tuple[Cluster, e.House]]:
    made = Cluster(root)
    word.tell(word.SERVING, root=str(root))
    made.keeper.begin()
    await made.engine.start()
    async with house(root, served(made.engine, named=True), **more) as at:
        yield made, at


def body(model: str) -> bytes:
    return json.dumps({"model": model}).encode()


async def test_who_asks_for_another_model_waits_for_it_and_who_asks_for_the_first_for_that(
    tmp_path: Path,
) -> None:
    async with models(tmp_path) as (cluster, at):
        assert (await at.ask(body=body("one"), **ONE)).json == {"of": "one"}
        waiting = asyncio.ensure_future(at.ask(body=body("two"), **ONE))
        await asyncio.sleep(0.1)
        assert set(cluster.keeper.asked) == {"one", "two"} and at.relay.held.now == 1
        switching = asyncio.ensure_future(cluster.switch("two"))
        await asyncio.sleep(0.02)
        again = asyncio.ensure_future(at.ask(body=body("one"), **ONE))  # while the first one drains
        told = await waiting
        assert told.json == {"of": "two"} and float(told.fields["x-sparkmatrix-held"]) > 0
        await switching
        await asyncio.sleep(0.1)
        assert not again.done(), "it is not sent to the engine of the other model"
        await cluster.switch("one")
        assert (await again).json == {"of": "one"}
        await asyncio.sleep(0.1)
        assert at.relay.held.now == 0 and not at.relay.named.open and not at.relay.named.asking


async def test_the_list_tells_what_is_loaded_and_what_can_be_had(tmp_path: Path) -> None:
    async with models(tmp_path) as (_cluster, at):
        told = (await at.ask("/v1/models", **ONE)).json["data"]
        assert {entry["id"]: entry.get("state") for entry in told} == {
            "one": "serving",
            "two": "absent",
            "three": "broken",
            "one-lora": None,
        }
        assert told[0]["max_model_len"] == 9 and told[1]["seconds"] == 2.0


@pytest.mark.parametrize(
    ("model", "more", "status", "code"),
    [
        ("four", {}, 404, "model_not_found"),
        ("three", {}, 503, "model_broken"),
        ("two", {"bound": ("one",)}, 403, "model_not_loaded"),
        ("two", {"hold_s": 1}, 503, "model_not_loaded"),  # it takes longer than a request may wait
        ("two", {"hold_s": 0}, 503, "model_not_loaded"),
        ("one", {"bound": ("one",)}, 200, ""),
        ("one-lora", {}, 200, ""),
    ],
)
async def test_what_is_said_at_once(tmp_path: Path, model: str, more: dict[str, Any], status: int, code: str) -> None:
    async with models(tmp_path, **more) as (cluster, at):
        told = await at.ask(body=body(model), **ONE)
        assert told.status == status
        assert not code or told.json["error"]["code"] == code
        await asyncio.sleep(0.1)
        # Whoever may not wait has asked all the same, and finds it when he comes again.
        assert ("two" in cluster.keeper.asked) == (model == "two" and "bound" not in more)


async def test_where_no_keeper_has_run_the_engine_knows_what_it_serves(tmp_path: Path) -> None:
    async with models(tmp_path) as (_cluster, at):
        (tmp_path / "run/sparkmatrix/models.json").unlink()
        assert (await at.ask(body=body("one"), **ONE)).status == 200
        assert (await at.ask(body=body("two"), **ONE)).status == 404


# -- who shares


async def echoes(request: Request, writer: Writer) -> None:
    writer.write(answer(json.loads(request.body)))


def salted(text: str | bytes, client: bytes = b"one") -> bytes:
    return http.salted(text.encode() if isinstance(text, str) else text, "secret", client)


def salt_of(text: str | bytes, client: bytes = b"one") -> str:
    """As an engine reads it: the last of several names counts."""
    return str(json.loads(salted(text, client))["cache_salt"])


def test_clients_share_with_themselves_alone() -> None:
    plain, own, escaped = (
        '{"model": "m"}',
        '{"model": "m", "cache_salt": "x"}',
        r'{"cache_salt" :"\u0078\"", "model": "m"}',
    )
    salts = [salt_of(text, client) for text in (plain, own, escaped) for client in (b"one", b"two", b"onex")]
    assert len(set(salts)) == 9 and {len(salt) for salt in salts} == {43}
    assert salt_of(plain) == salt_of('{"messages": ["\\"cache_salt\\": \\"x\\""]} \n') == salt_of("{ }")
    assert salt_of(own) == salt_of(own.replace('"m"', '"other"')) != salt_of(f'{{"cache_salt": "{salt_of(own)}"}}')


@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "b": {"cache_salt": "y"}}', '{"cache\\u005fsalt": "x", "a": 1}', '{"a": 1, "\\ud800": 2}\t', "{}"],
)
def test_all_else_of_a_request_stays_as_it_is(text: str, code: str) -> None:
    made = json.loads(salted(text.encode(code)))
    assert len(made["cache_salt"]) == 43
    assert {**made, "cache_salt": 0} == {**json.loads(text), "cache_salt": 0}


# What becomes of it says the engine, which refuses it.
@pytest.mark.parametrize(
    "text",
    [b"[1]", b"", b"}", b'{"cache_salt": "x", "a": "}', b'{"cache_salt": "x", "a": {}', b'{"a": 1}}', b"\xff\xfe}"],
)
def test_what_is_no_request_is_none_afterwards(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert not isinstance(json.loads(salted(text)), dict)


@pytest.mark.parametrize("more", [b"", b'"cache_salt":"', b'"cache_salt":"\\\\'])
def test_a_large_request_is_not_taken_to_pieces(more: bytes) -> None:
    """Nothing that a client writes makes all others wait, however deep or long it is."""
    deep = b'{"a": ' + b"[" * 10**6 + b"]" * 10**6 + b', "b": "' + more * (4 * 10**6 // max(1, len(more))) + b'"}'
    began = time.process_time()
    assert salted(deep).endswith(b'"}')
    assert time.process_time() - began < 2, "a bound that tells a scan from a parse on a busy machine"


@pytest.mark.parametrize("more", [b"a" * 8 * 2**20, (b"a" * 127 + rb"\a") * 64 * 2**10, rb'\a"cache_salt":"' * 2**19])
def test_a_salt_that_does_not_end_is_looked_at_as_far_as_one_may_be_long(more: bytes) -> None:
    """All others wait meanwhile."""
    endless = b'{"cache_salt":"' + more + b"}"
    plain = b'{"cache_sale":"' + more.replace(b"cache_salt", b"cache_sale") + b"}"
    took = []
    for body in (plain, endless):
        began = time.process_time()
        salted(body)
        took.append(time.process_time() - began)
    assert took[1] < 3 * took[0] + 0.1


async def test_each_key_has_its_salt_at_the_engine_and_keeps_it(tmp_path: Path) -> None:
    seen: list[list[Any]] = []
    for _start in range(2):  # of relay and engine
        engine = await Engine(echoes).start()
        async with house(tmp_path, served(engine, salted=(e.CHAT,)), salt="secret") as at:
            told = [
                (await at.ask(body=text.encode(), X_Sparkmatrix_Client=client)).json["cache_salt"]
                for client in ("one", "two")
                for text in ('{"model": "m"}', '{"model": "m", "cache_salt": "x"}')
            ]
            assert len(set(told)) == 4 and told[1] == salt_of('{"cache_salt": "x"}')
            # What one has at the engine is of no use to another.
            named = json.dumps({"cache_salt": told[0]}).encode()
            assert (await at.ask(body=named, X_Sparkmatrix_Client="two")).json["cache_salt"] not in told
            assert "cache_salt" not in (await at.ask("/v1/embeddings", body=b'{"model": "m"}', **ONE)).json
            assert (await at.ask(body=b"[1]", **ONE)).json == [1]
            seen.append(told)
        await engine.kill()
    assert seen[0] == seen[1]


async def test_of_several_engines_each_is_told(tmp_path: Path) -> None:
    one, other = await Engine(echoes).start(), await Engine(echoes).start()
    engines = served(one, salted=(e.CHAT,)), served(other, "small", "other")
    async with house(tmp_path, *engines, salt="secret") as at:
        assert (await at.ask(body=b'{"model": "tiny"}', **ONE)).json["cache_salt"] == salt_of("{}")
        assert "cache_salt" not in (await at.ask(body=b'{"model": "other"}', **ONE)).json
