# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine that nobody here knows: the recipe's own image and command (:mod:`_engine.own_command`)."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import own_command
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import (
    API_HOST,
    Engine,
    Launch,
    Rank,
)


class Command(Engine):
    name = "command"
    label = "its own command"
    short = ""
    starter = ""
    distributions = ()
    image = ""
    opaque = True
    prefix = ""
    planned: Mapping[str, str] = {}
    help_words = ()
    devices = ("gpu", "cpu")
    tasks = tuple(api_paths.PROBED)
    drafts = ("draft_model", "eagle3", "dflash", "dspark")  # models that its command names, to be brought with its own
    share_of_free = False

    def image_version(self, image: str) -> str:
        return ""

    def ranks(self, launch: Launch) -> list[Rank]:
        own = launch.own
        if own is None:
            raise SparkError("the recipe has no command", "recipe", "Add it (docs/recipes.md)")
        made = []
        for number in range(len(launch.ordered)):
            argv = (own.worker if number else own.command).argv
            words = [own_command.fill(word, _places(launch, number)) for word in argv]
            ports = {"api": launch.port, "rendezvous": launch.rendezvous_port} if number == 0 else {}
            made.append(Rank(words[:1], words[1:], ports=ports, entrypoint=own.entrypoint))
        return made

    def served_name(self, launch: Launch) -> str:
        """As its command says; where that names none, the recipe does, or the model is called as it is."""
        own = launch.own
        return launch.served if not own or own.names_served else own.served or launch.model

    def filled(self, launch: Launch, number: int, text: str) -> str:
        return own_command.fill(text, _places(launch, number))


def _places(launch: Launch, number: int) -> dict[str, str]:
    fact = launch.ordered[number]
    return {
        "rank": str(number),
        "nodes": str(len(launch.ordered)),
        "head": launch.head.cluster_address,
        "address": fact.cluster_address,
        "interface": fact.cluster_interface,
        "host": API_HOST if number else launch.api_host,
        "port": str(launch.port),
        "rendezvous_port": str(launch.rendezvous_port),
        "model": launch.model,
        "served": launch.served,
    }


ENGINE = Command()
