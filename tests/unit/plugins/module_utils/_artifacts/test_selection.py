# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which files are brought, by the repositories that people use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import selection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from hypothesis import given
from hypothesis import strategies as st

SMALL = ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "modeling_x.py", "README.md"]
GB = 10**9


def index(*files: str) -> str:
    return json.dumps({"weight_map": {str(number): file for number, file in enumerate(files)}})


def shards(count: int, start: str = "model", end: str = "safetensors") -> list[str]:
    return [f"{start}-{number:05}-of-{count:05}.{end}" for number in range(1, count + 1)]


def choose(weights: list[str], indexes: Mapping[str, str] | None = None, small: list[str] = SMALL, **options: Any):
    indexes = indexes or {}
    sizes = {**dict.fromkeys([*small, *indexes], 1000), **dict.fromkeys(weights, GB)}
    made = selection.choose("org/model", sizes, indexes, **options)
    assert set(small) | set(indexes) <= set(made.paths)
    assert sum(made.left_out.values()) == sum(sizes.values()) - sum(sizes[path] for path in made.paths)
    return {path for path in made.paths if sizes[path] == GB}, made


def test_gpt_oss_is_brought_once_and_not_three_times() -> None:
    weights = shards(3)
    others = ["original/model.safetensors", "original/config.json", "metal/model.bin"]
    brought, made = choose([*weights, *others], {selection.INDEX: index(*weights)})
    assert brought == set(weights)
    assert made.left_out == {"original/": 2 * GB, "metal/": GB}


@pytest.mark.parametrize(
    ("weights", "indexed", "brought"),
    [
        (["model.safetensors"], [], ["model.safetensors"]),
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"], [], ["model.safetensors"]),
        (["model.safetensors", "q4.gguf", "onnx/model.onnx", "training_args.bin"], [], ["model.safetensors"]),
        ([*shards(2), "consolidated.safetensors"], shards(2), shards(2)),
        (["model.safetensors", "consolidated.safetensors"], [], ["model.safetensors"]),
        (["consolidated.safetensors"], [], ["consolidated.safetensors"]),
        (shards(2, "consolidated"), [], shards(2, "consolidated")),
        ([*shards(2), "mtp.safetensors"], shards(2), shards(2)),  # engines drop what the index does not name
        ([*shards(2), "mtp.safetensors"], [], [*shards(2), "mtp.safetensors"]),
        (
            [*shards(2), "extra/mtp.safetensors"],
            [*shards(2), "extra/mtp.safetensors"],
            [*shards(2), "extra/mtp.safetensors"],
        ),
        (["model.safetensors", "checkpoint-10/model.safetensors"], [], ["model.safetensors"]),
        (["adapter_model.safetensors"], [], ["adapter_model.safetensors"]),
    ],
)
def test_weights(weights: list[str], indexed: list[str], brought: list[str]) -> None:
    assert choose(weights, {selection.INDEX: index(*indexed)} if indexed else {})[0] == set(brought)


@pytest.mark.parametrize("says", ["modules.json", "model_index.json"])
def test_a_model_of_several_folders(says: str) -> None:
    weights = ["model.safetensors", "2_Dense/model.safetensors"]
    assert choose(weights, small=[*SMALL, says])[0] == set(weights)
    assert choose(weights)[0] == {"model.safetensors"}


def test_mistral_s_own_layout_where_there_is_no_other() -> None:
    weights, own = shards(2), shards(2, "consolidated")
    both = {selection.INDEX: index(*weights), "consolidated.safetensors.index.json": index(*own)}
    brought, made = choose([*weights, *own], both)
    assert brought == set(weights)
    assert made.left_out == {"the same weights in Mistral's own layout": 2 * GB}
    assert choose([*weights, *own], both, small=["params.json", "tekken.json"])[0] == set(own)


def test_pickle_is_refused_until_it_is_allowed() -> None:
    weights = shards(2, "pytorch_model", "bin")
    indexes = {"pytorch_model.bin.index.json": index(*weights)}
    with pytest.raises(SparkError, match=r"pickle only \(pytorch_model-00001.*artifacts_allow_pickle: true"):
        choose([*weights, "training_args.bin"], indexes)
    brought, _made = choose([*weights, "training_args.bin"], indexes, pickle=True)
    assert brought == set(weights)
    assert choose(["pytorch_model.bin", "optimizer.pt"], pickle=True)[0] == {"pytorch_model.bin"}


@pytest.mark.parametrize(
    ("weights", "indexes", "says"),
    [
        ([], {}, "it has no safetensors$"),
        (["a.gguf", "b.gguf", "c.gguf", "d.gguf"], {}, "only a.gguf, b.gguf, c.gguf and 1 more"),
        (["training_args.bin"], {}, "it has no safetensors"),
        (shards(3)[:2], {}, r"2 of 3 files model-\*"),
        (
            shards(3)[:2],
            {selection.INDEX: index(*shards(3))},
            "names model-00003-of-00003.safetensors, which it does not",
        ),
        (["x.bin", "model.safetensors"], {selection.INDEX: index("x.bin")}, "names x.bin"),
        (shards(1), {selection.INDEX: "{"}, "cannot be read"),
        (shards(1), {selection.INDEX: "[]"}, "cannot be read"),
        (shards(1), {selection.INDEX: '{"weight_map": {}}'}, "names no file"),
    ],
)
def test_what_cannot_be_a_model_is_refused(weights: list[str], indexes: dict[str, str], says: str) -> None:
    with pytest.raises(SparkError) as caught:
        choose(weights, indexes)
    assert caught.value.remedy
    assert re.search(says, caught.value.found)


def test_odd_names_are_refused_where_they_are_needed() -> None:
    with pytest.raises(SparkError, match="cannot be laid down as files: a file of the name"):
        choose(["model\n.safetensors"])
    odd = ["original/a\nb.safetensors", "a/../b.json", "/etc/x.json", "ä.json"]
    brought, made = choose(["model.safetensors", *odd])
    assert brought == {"model.safetensors"}
    assert made.left_out["names that are not taken"] == 3 * GB


def test_what_is_large_and_no_weights_stays() -> None:
    sizes = {"config.json": 1, "model.safetensors": GB, "data.parquet": GB, ".gitattributes": 1, "vocab.txt": 10**7}
    made = selection.choose("a/b", sizes, {})
    assert made.paths == ("config.json", "model.safetensors", "vocab.txt")
    assert made.left_out == {"large files that are no weights": GB, "hidden files": 1}


def test_a_file_where_another_one_needs_a_directory() -> None:
    with pytest.raises(SparkError, match=r"a.json, file and directory"):
        choose(["model.safetensors"], small=["config.json", "a.json", "a.json/b.json"])


_NAMES = st.sampled_from(
    [
        *SMALL,
        *shards(2),
        *shards(2, "consolidated"),
        *selection.INDEXES,
        "model.safetensors",
        "params.json",
        "modules.json",
        "pytorch_model.bin",
        "a/b.safetensors",
        "a",
        "original/x.pth",
        "../x",
    ]
)
_TEXTS = st.one_of(
    st.sampled_from(["", "[]", '{"weight_map": []}', '{"weight_map": {"a": ["b"]}}']),
    st.lists(_NAMES).map(lambda one: index(*one)),
)


@given(
    st.dictionaries(_NAMES, st.integers(0, 10 * GB)),
    st.dictionaries(st.sampled_from(selection.INDEXES), _TEXTS),
    st.booleans(),
)
def test_whatever_a_repository_has(sizes: dict[str, int], indexes: dict[str, str], pickle: bool) -> None:
    try:
        made = selection.choose("org/model", sizes, indexes, pickle)
    except SparkError as refused:
        assert refused.remedy
        return
    assert set(made.paths) <= set(sizes)
    assert any(path.endswith((".safetensors", ".bin")) for path in made.paths)
    assert not any(path.endswith((".bin", ".pth")) for path in made.paths) or pickle
    assert sum(made.left_out.values()) + sum(sizes[path] for path in made.paths) == sum(sizes.values())
