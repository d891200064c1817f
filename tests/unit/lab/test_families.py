# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Which shipped recipe is of which family; the scenario `families` serves one model of each."""

from pathlib import Path

import families

SHIPPED = [path.stem for path in Path(__file__).parents[3].glob("roles/engine/files/recipes/*.yml")]


def of(recipe: str) -> list[str]:
    return [name for name, family in families.FAMILIES.items() if recipe.startswith(family.recipes)]


def test_every_shipped_recipe_is_of_one_family():
    left = {recipe: of(recipe) for recipe in SHIPPED if len(of(recipe)) != 1}
    assert {recipe: found for recipe, found in left.items() if not recipe.startswith(families.NOT_VLLM)} == {}
    assert all(found == [] for found in left.values())


def test_every_family_is_shipped_and_has_a_model():
    for family in families.FAMILIES.values():
        assert not family.recipes or any(recipe.startswith(family.recipes) for recipe in SHIPPED), family
        assert family.model in families.CONFIGURATIONS
    assert set(families.CONFIGURATIONS) == {family.model for family in families.FAMILIES.values()}
