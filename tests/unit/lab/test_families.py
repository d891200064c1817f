# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Which shipped recipe is of which family; the scenario `families` serves one model of each."""

from pathlib import Path

import families

SHIPPED = [path.stem for path in Path(__file__).parents[3].glob("roles/engine/files/recipes/*.yml")]


def of(recipe: str) -> list[str]:
    return [name for name, family in families.FAMILIES.items() if recipe.startswith(family.recipes)]


def test_every_shipped_recipe_is_of_one_family():
    tried = [recipe for recipe in SHIPPED if not recipe.startswith(families.NOT_TRIED)]
    assert {recipe: found for recipe in tried if len(found := of(recipe)) != 1} == {}


def test_every_family_is_shipped_and_has_a_model():
    for family in families.FAMILIES.values():
        assert not family.recipes or any(recipe.startswith(family.recipes) for recipe in SHIPPED), family
        assert family.model in families.CONFIGURATIONS
    assert all(any(recipe.startswith(start) for recipe in SHIPPED) for start in families.NOT_TRIED)
    assert set(families.CONFIGURATIONS) == {family.model for family in families.FAMILIES.values()}
