# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""What a further engine takes: a class, an option table and its line in the registry; nothing else knows engines."""

import json
import re
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import engine_signs
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine, Rank
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES, KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import required

TABLE = {
    "engine": "toy",
    "version": "1.0",
    "options": {"--model": "str", "--split": "int", "--rank": "int", "--chunk": "int"},
    "aliases": {},
    "opposites": {},
    "values": {},
}
LINE = "toy run --chunk 4096 --model some/model --rank 0 --split 2"


class Toy(Engine):
    name = "toy"
    label = "Toy"
    distributions = ("toy",)
    image = "example.org/toy:1.0"
    prefix = "TOY_"
    planned = {"model": "the recipe's model"}  # noqa: RUF012
    batched_option = "chunk"
    key_variable = "TOY_KEY"

    def image_version(self, image):
        return image.rpartition(":")[2]

    def ranks(self, launch):
        words = {"model": launch.model, "split": launch.parallel.tensor, **launch.options}
        return [
            Rank(("toy", "run"), kinds_base.render({**words, "rank": number}), ports={"api": launch.port})
            for number in range(len(launch.ordered))
        ]

    def own_environment(self, address, ray_directory):
        return {"TOY_ADDRESS": address}


@pytest.fixture
def _toy(tmp_path, monkeypatch):
    (tmp_path / "toy-1.0.json").write_text(json.dumps(TABLE))
    monkeypatch.setattr(option_tables, "DIRECTORY", tmp_path)
    monkeypatch.setitem(ENGINES, "toy", Toy())
    monkeypatch.setitem(KINDS, "toy", ENGINES["toy"])
    option_tables.load.cache_clear()
    option_tables.versions.cache_clear()
    yield
    option_tables.load.cache_clear()
    option_tables.versions.cache_clear()


def made(count=2, **settings):
    document = {
        "model": "some/model",
        "architecture": {"layers": 40, "attention_heads": 32, "kv_heads": 8, "head_dim": 128},
        "weights_gb": 16,
        "context": 4096,
        "concurrency": 2,
        "engine": "toy",
    }
    recipe = required(*engine_recipe.parse(document, "some.yml", "some"))
    hosts = [f"spark{number + 1}" for number in range(count)]
    return plan(recipe, assumed_facts(hosts), UserSettings(**settings), {})


@pytest.mark.usefixtures("_toy")
def test_a_further_engine_is_planned():
    result = made(profile="chatbot")
    head, worker = result.plans.values()
    assert head.here[0].engine.command.words == LINE.split()
    assert worker.here[0].engine.command.words[-3:] == ["1", "--split", "2"]
    assert worker.here[0].engine.env["TOY_ADDRESS"] == "192.168.100.11"
    assert (head.here[0].engine.version, head.here[0].engine.key) == ("1.0", True)
    assert (head.here[0].runtime, head.here[0].image, head.here[0].backend) == (
        "container",
        "example.org/toy:1.0",
        "native",
    )


@pytest.mark.usefixtures("_toy")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"options": {"splitt": 1}}, "Toy 1.0 has no option --splitt"),
        ({"options": {"model": "x"}}, "the option model is set by the plan"),
        ({"data_parallel_size": 2}, "toy has no replicas"),
        ({"runtime": "venv"}, "Require toy==1.0"),
    ],
)
def test_its_rules_are_held(settings, expected):
    result = made(**settings)
    assert not result.plans
    assert expected in "\n".join(map(str, result.findings))


def test_nobody_else_compares_names_of_engines():
    """But for recipes of others, who have names of their own for engines."""
    root = Path(engine_recipe.__file__).parents[1]
    name = r"""["'](vllm|sglang|tensorrt-llm)["']"""
    comparison = re.compile(rf"(==|!=|\bin \()\s*{name}|{name}:")
    found = [
        f"{path.relative_to(root)}:{number}"
        for path in root.rglob("*.py")
        if path.parent.name != "_peers"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if comparison.search(line)
    ]
    assert found == []


def test_nodes_know_every_engine():
    known = {signs.package: signs for signs in engine_signs.ENGINES}
    assert set(known) == {engine.distributions[0].replace("-", "_") for engine in ENGINES.values()}
    for engine in ENGINES.values():
        assert engine.short in known[engine.distributions[0].replace("-", "_")].comms
