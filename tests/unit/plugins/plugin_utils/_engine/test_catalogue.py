# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import catalogue, planners
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from engine_plans import recipe


def listed(nodes, search="", paths=()):
    return planners.list_recipes({"nodes": nodes, "recipe_paths": paths, "launch": "ray", "search": search})


def row(made, name):
    return next(line for line in made["lines"] if line.startswith(f"{name} "))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8])
def test_the_list_is_a_table_that_fits_a_terminal(nodes):
    made = listed(nodes)
    heading, *rows = made["lines"][1 : len([recipe["name"] for recipe in made["recipes"]]) + 2]
    assert heading.split() == " ".join(catalogue.HEADINGS).split()
    assert [line.split()[0] for line in rows] == [recipe["name"] for recipe in made["recipes"]]
    assert max(map(len, [heading, *rows])) <= 78  # two more on the screen
    for name in ("For", "Requests"):  # each column begins where its heading does
        place = heading.index(name)
        assert all(line[place - 2 : place] == "  " and line[place] != " " for line in rows), name


def test_its_look():
    made = listed(1, "coding")
    assert made["lines"][:3] == [
        "2 recipe(s) fit 1 Spark(s), the fastest for one user first.",
        "Name                   For     1 user  8 users  Requests  Wait  GB",
        "qwen3-coder-next-int4  coding      71      235  4 x 128k   1.7  46",
    ]
    details = made["lines"][made["lines"].index("qwen3-coder-next-fp8:") :]
    assert "  - 60.5 tokens/s with SGLang, 1 stream(s), 2 Spark(s): Spark Arena, spring 2026" in details
    assert any("GiB to spare" in line for line in details)


def test_what_fits_two_sparks(tmp_path):
    made = listed(2)
    names = [recipe["name"] for recipe in made["recipes"]]
    assert "minimax-m2.7-awq" in names and "glm-5.2-nvfp4" not in names
    cells = row(made, "qwen3-235b-a22b-gptq-int4").split()
    assert cells[:3] == ["qwen3-235b-a22b-gptq-int4", "chat", "17"], "reported"
    assert cells[3].startswith("~") and cells[4:7] == ["8", "x", "32k"], "estimated"
    assert "A licence has to be accepted on Hugging Face before: llama-3.1-70b-fp8-draft." in made["lines"]
    assert "  - its licence has to be accepted on Hugging Face before" in listed(2, "draft")["lines"]
    assert "images" in row(made, "qwen3-vl-32b-fp8") and "vectors" in row(made, "qwen3-embedding-0.6b")
    found = [entry for entry in catalogue.fitting([], 1)[0] if entry.recipe.task == "generate"]
    speeds = [entry.expected.at(1, entry.recipe.engine)[0] for entry in found]
    assert speeds == sorted(speeds, reverse=True)
    (tmp_path / "gpt-oss-120b.yml").write_text("nonsense: 1")
    broken = listed(1, paths=[str(tmp_path)])
    assert "gpt-oss-120b" not in str(broken["recipes"]) and "unknown key nonsense" in " ".join(broken["warnings"])


def test_a_recipe_with_a_command_of_its_own_is_listed(tmp_path):
    own = "model: some/fast\nengine: command\nimage: example.org/x:1.0\ncommand: {words: [serve]}\n"
    (tmp_path / "fast.yml").write_text(own)
    made = listed(2, "fast some", paths=[str(tmp_path)])
    assert row(made, "fast").split() == ["fast", "chat", "?", "?"]
    assert "not known before its first start" in " ".join(made["lines"])
    assert "Brings code of others, and its plan asks for your consent: fast." in made["lines"]


def test_a_recipe_that_asks_for_consent_is_listed_with_that():
    (note,) = [line for line in listed(2)["lines"] if line.startswith("Brings code of others")]
    assert "mimo-v2.6-flash" in note and "glm-5.3-flash-exl3" in note and "gpt-oss" not in note


@pytest.mark.parametrize(
    ("least", "most", "said"), [(1, 1, "1"), (2, 2, "2"), (2, 4, "2 to 4"), (8, Recipe.max_nodes, "8 or more")]
)
def test_for_how_many_a_recipe_is(least, most, said):
    assert recipe(min_nodes=least, max_nodes=most).for_nodes == said


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("MiniMax awq", ["minimax-m2.7-awq"]),
        ("ranking", ["qwen3-reranker-0.6b", "qwen3-vl-reranker-8b"]),
        ("coding", ["qwen3-coder-next-int4", "qwen3-coder-next-fp8"]),  # not those with speculative decoding
        ("coder fp", ["qwen3-coder-next-fp8"]),
        ("27B-d", ["qwen3.8-27b-dflash"]),
        ("speech", ["qwen3-asr-1.7b"]),
        ("tensorrt-llm", ["qwen3-235b-a22b-nvfp4-trtllm", "llama-3.1-70b-trtllm"]),
    ],
)
def test_all_words_are_searched_for(words, names):
    made = listed(2, words)
    assert [recipe["name"] for recipe in made["recipes"]] == names
    assert f"{names[0]}:" in made["lines"]


def test_nothing_is_listed_without_a_reason():
    with pytest.raises(planners.RefusedError, match="recipes_nodes=2"):
        listed(0)
    with pytest.raises(planners.RefusedError, match=r"fits 2 Spark\(s\) says 'glm-5.2'. All: "):
        listed(2, "glm-5.2")


def test_who_asks_for_one_that_does_not_fit_is_told_why():
    with pytest.raises(planners.RefusedError) as refused:
        listed(3, "qwen3.8-flash-next")
    assert str(refused.value).splitlines()[1:] == [
        "qwen3.8-flash-next-b12x does not fit: qwen3.8-flash-next-b12x is for 2 nodes, and there are 3",
        "qwen3.8-flash-next-nvfp4 does not fit: tensor parallel 3 does not work: 2 KV heads and 3 shards do not divide",
    ]
    made = listed(3, "minimax")
    assert made["lines"][-1].startswith("minimax-m3-nvfp4 does not fit: the model does not fit: ")
    assert "minimax-m3-nvfp4" not in [recipe["name"] for recipe in made["recipes"]]
    assert not any("does not fit" in line for line in listed(3)["lines"])
