# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine that nobody here knows: the recipe's own image and command (:mod:`_engine.own_command`)."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine, Launch, Rank


class Command(Engine):
    name = "command"
    label = "its own command"
    short = "command"
    starter = ""
    distributions = ()
    image = ""
    opaque = True
    prefix = ""
    planned: Mapping[str, str] = {}
    help_words = ()
    devices = ("gpu", "cpu")
    tasks = tuple(api_paths.PROBED)
    share_of_free = False

    def image_version(self, image: str) -> str:
        return ""

    def ranks(self, launch: Launch) -> list[Rank]:
        return []


ENGINE = Command()
