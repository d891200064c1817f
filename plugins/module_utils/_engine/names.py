# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a service of the engine is called on a node.

A service that is alone in its cluster has plain names (``sparkmatrix-engine.service``, ``engine.json``); several are
told apart by ``-<name>`` at the end. Ray, the key and what keeps the key from vLLM's ranks exist once.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths

RAY_UNIT = "sparkmatrix-ray.service"
RAY_PROJECT = "sparkmatrix-ray"  # of Compose; its container is called so, too
RAY_FILE = f"{paths.ETC}/ray/compose.yml"
RAY_NCCL_CONF = f"{paths.ETC}/ray/nccl.conf"
RAY_ENVIRONMENT = f"{paths.ETC}/ray.env"
NOT_CARRIED = f"{paths.ETC}/vllm/ray_non_carry_over_env_vars.json"
LOGIN = "/etc/profile.d/sparkmatrix-engine.sh"
NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
UNIT = re.compile(r"sparkmatrix-(engine|keeper)(?:-([a-z][a-z0-9-]{0,31}))?\.service")
_DESCRIPTION = re.compile(r"engine(?:-([a-z][a-z0-9-]{0,31}))?\.json")


@dataclass(frozen=True)
class Names:
    """``instance``: the name of the service where there are several, else empty."""

    instance: str = ""

    @property
    def suffix(self) -> str:
        return f"-{self.instance}" if self.instance else ""

    @property
    def unit(self) -> str:
        return f"sparkmatrix-engine{self.suffix}.service"

    @property
    def keeper(self) -> str:
        return f"sparkmatrix-keeper{self.suffix}.service"

    @property
    def description(self) -> str:
        """Read by ``sparkmatrix-node probe``, ``rank`` and ``keep``."""
        return f"{paths.ETC}/engine{self.suffix}.json"

    @property
    def environment(self) -> str:
        return f"{paths.ETC}/engine{self.suffix}.env"

    @property
    def project(self) -> str:
        """Of Compose; the container is called so, too."""
        return f"sparkmatrix-engine{self.suffix}"

    @property
    def directory(self) -> str:
        """What its container is made from."""
        return f"{paths.ETC}/engine{self.suffix}"

    @property
    def compose_file(self) -> str:
        return f"{self.directory}/compose.yml"

    @property
    def nccl_conf(self) -> str:
        return f"{self.directory}/nccl.conf"

    @property
    def prefixes(self) -> str:
        """What it keeps of prompts on disk."""
        return f"{paths.PREFIXES}/{self.project}"

    @property
    def prefixes_unit(self) -> str:
        """Keeps that its own, and below a limit."""
        return f"sparkmatrix-prefixes{self.suffix}.service"

    @property
    def kept(self) -> str:
        """Where its keeper leaves its state and its history."""
        return f"{paths.KEEPER}/{self.instance}".rstrip("/")


@dataclass(frozen=True)
class OptionNames:
    """What an option of a service is called where the user wrote it: a variable, or a key of ``engine_services``.

    Texts name it as ``names["context"]`` or, where they are data, as ``{context}`` for ``format_map``.
    """

    in_entry: bool = False

    def __getitem__(self, option: str) -> str:
        if self.in_entry:
            return option
        return "engine_name" if option == "engine" else f"engine_{option}"


VARIABLES = OptionNames()


def instance_of(unit: str) -> str:
    """Name of the service that a unit belongs to; empty for one that is alone, and for units of others."""
    match = UNIT.fullmatch(unit if unit.endswith(".service") else f"{unit}.service")
    return (match.group(2) or "") if match else ""


def instances(root: str = "/") -> list[str]:
    """Of the services that have a description on this node; empty for the one that is alone."""
    names = [path.name for path in (Path(root) / paths.ETC.lstrip("/")).glob("engine*.json")]
    return sorted(match.group(1) or "" for match in map(_DESCRIPTION.fullmatch, names) if match)


def choose(parser: argparse.ArgumentParser) -> None:
    """The option that names a service."""
    parser.add_argument("--service", default="", metavar="NAME", help="which one, where there are several")
