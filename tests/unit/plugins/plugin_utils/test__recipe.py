# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _recipe
from hypothesis import given
from hypothesis import strategies as st

SMALL = {
    "model": "someone/small",
    "architecture": {"layers": 4, "attention_heads": 8, "kv_heads": 4, "head_dim": 32},
    "weights_gb": 1.5,
    "context": 1024,
    "concurrency": 2,
}


def changed(**values):
    return {**SMALL, **values}


def sizes(**values):
    return changed(architecture={**SMALL["architecture"], **values})


def test_a_small_recipe_has_defaults():
    recipe, findings = _recipe.parse(SMALL, "small.yml", "small")
    assert findings == []
    assert (recipe.name, recipe.engine, recipe.device, recipe.min_nodes) == ("small", "vllm", "gpu", 1)
    assert recipe.architecture.kv_heads == 4
    assert recipe.options == {}


def test_environment_values_become_text():
    recipe, _ = _recipe.parse(changed(environment={"N": 3}, hazards=["slow"]), "small.yml", "small")
    assert recipe.environment == {"N": "3"}
    assert recipe.hazards == ("slow",)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (["a"], "not a mapping"),
        (None, "not a mapping"),
        (changed(contxt=5), "Did you mean 'context'"),
        (changed(context="long"), "context is str 'long'. It has to be a whole number"),
        (changed(context=True), "context is bool"),
        (changed(context=0), "context is 0"),
        (changed(architecture="llama"), "architecture is not a mapping"),
        (sizes(kv_head=2), "Did you mean 'kv_heads'"),
        (sizes(kv_heads=3), "no multiple"),
        (sizes(layers=-1), "layers is -1"),
        (changed(engine="vlm"), "engine is 'vlm'"),
        (changed(device="tpu"), "gpu, cpu"),
        (changed(runtime="vm"), "venv, container"),
        (changed(name="Bad Name"), "no plain word"),
        (changed(model=" "), "model is empty"),
        (changed(min_nodes=4, max_nodes=2), "max_nodes"),
        (changed(gpu_memory_utilization=80), "share from 0 to 1"),
        (changed(hazards="slow"), "a list of texts"),
        (changed(options=["a"]), "a mapping of names"),
        (changed(environment={"A B": "x"}), "'A B'"),
        (changed(environment={"A": [1]}), "environment is dict"),
        (changed(weights_gb=None), "weights_gb is empty"),
        ({key: value for key, value in SMALL.items() if key != "model"}, "model is missing"),
    ],
)
def test_what_is_wrong_is_said(document, expected):
    recipe, findings = _recipe.parse(document, "some.yml", "some")
    assert recipe is None
    assert expected in "\n".join(map(str, findings))


def test_all_errors_at_once():
    _, findings = _recipe.parse({"contxt": 1, "weights_gb": "heavy"}, "bad.yml", "bad")
    text = "\n".join(map(str, findings))
    for word in ("contxt", "weights_gb", "model is missing", "architecture is missing", "context is missing"):
        assert word in text


def test_the_users_recipe_comes_first(tmp_path):
    (tmp_path / "qwen3-8b.yml").write_text(yaml.safe_dump(SMALL))
    recipe, findings = _recipe.find("qwen3-8b", [str(tmp_path)])
    assert findings == []
    assert recipe.model == "someone/small"
    recipe, _ = _recipe.find(str(tmp_path / "qwen3-8b.yml"), [])
    assert recipe.name == "qwen3-8b"


def test_an_unknown_recipe_names_the_known_ones():
    recipe, (finding,) = _recipe.find("qwen3-8", [])
    assert recipe is None
    assert "Did you mean 'qwen3-8b'" in str(finding)


@pytest.mark.parametrize("content", ["a: [", "\x00", b"\xff\xfe\x00"])
def test_unreadable_yaml(tmp_path, content):
    path = tmp_path / "bad.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    recipe, findings = _recipe.read(path)
    assert recipe is None
    assert len(findings) == 1


def test_a_missing_file(tmp_path):
    _, (finding,) = _recipe.read(tmp_path / "none.yml")
    assert "cannot be read" in str(finding)


@pytest.mark.parametrize("path", sorted(_recipe.SHIPPED.glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_say_where_their_numbers_come_from(path):
    recipe, findings = _recipe.read(path)
    assert findings == []
    assert recipe.sources


def test_require():
    recipe, findings = _recipe.parse(SMALL, "small.yml", "small")
    assert _recipe.require(recipe, findings) is recipe
    with pytest.raises(SparkError, match="not a mapping"):
        _recipe.require(*_recipe.parse(3, "x.yml"))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SMALL, "options", "environment", "engine", "other"]), ANY))
def test_any_document_gives_a_recipe_or_findings(document):
    recipe, findings = _recipe.parse({**SMALL, **document}, "any.yml", "any")
    assert (recipe is None) == bool(findings)
