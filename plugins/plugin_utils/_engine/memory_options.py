# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What options of recipe and user take of a node's memory: each is counted, or refused.

Which option does what stands in the engine's own file (``counted``, ``uncounted``, ``closed``, ``lora``). A test holds
the names of all options in the newest tables against these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.memory_fit import Takes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture

# As vLLM reads it: small letters are powers of ten, capitals of two.
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([kmgtKMGT]?)(i?)")
_POWERS = {letter: 1000**power for power, letter in enumerate("kmgt", start=1)}
_POWERS |= {letter: 1024**power for power, letter in enumerate("KMGT", start=1)} | {"": 1}
_NOTHING = frozenset({"", "0", "0.0", "false", "none", "null", "auto", "off"})
_LORA_BYTES = 2
_LORA_INTERMEDIATE = 3.5  # of the hidden size, where a recipe does not say it


def number(value: Any) -> float | None:
    """The largest one that an engine may read in a value; nothing where there is none."""
    if isinstance(value, (list, tuple)):
        read = [number(item) for item in value]
        return None if None in read or not read else max(filter(None, read), default=0.0)
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    match = _NUMBER.fullmatch(str(value).strip())
    if not match:
        return None
    power: int = _POWERS[match[2].upper() if match[3] else match[2]]
    return float(match[1]) * power


def plain(name: str) -> str:
    """One spelling for dashes and underscores."""
    return name.replace("-", "_")


def spelled(engine: Engine, version: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """By :func:`plain` long name, keys of mappings with dots; an abbreviation is what it is for. ``options``: merged.

    Where one thing is said twice the later counts, as in the parsers.
    """
    table = option_tables.newest(engine.name, version)
    by_plain = {plain(name): name for name in (*table.options, *table.aliases)}
    given: dict[str, Any] = {}
    for name in sorted(options):
        known = by_plain.get(plain(f"--{name}"), f"--{name}")
        if known not in by_plain.values():
            longer = {table.long_name(full) for short, full in by_plain.items() if short.startswith(plain(known))}
            known = longer.pop() if len(longer) == 1 else known
        long_name = (table.long_name(known) or known).lstrip("-")
        value = options[name]
        _walk(plain(long_name), not value if isinstance(value, bool) and table.turns_off(known) else value, given)
    return given


def _walk(name: str, value: Any, given: dict[str, Any]) -> None:
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    given[name] = value
    if isinstance(value, Mapping):
        for key in value:
            _walk(f"{name}.{plain(str(key))}", value[key], given)


def off(value: Any) -> bool:
    """It says that nothing is wanted."""
    return value is None or str(value).strip().casefold() in _NOTHING or value in ({}, [], ())


def takes(engine: Engine, given: Mapping[str, Any], model: Architecture, ranks: int) -> Takes:
    """What is counted, in bytes of one rank. ``given``: from :func:`spelled`."""
    made = {"cache": 0.0, "tokens": 0.0, "share": 0.0, "host": 0.0, "captured": 0.0}
    for name, counted in engine.counted.items():
        size = number(given.get(plain(name)))
        if size:
            taken = size * counted.unit / (ranks if counted.of_all else 1)
            made[counted.part] = (
                max(made[counted.part], taken) if counted.part == "captured" else made[counted.part] + taken
            )
    adapters, held = _adapters(engine, given, model)
    made["share"] += adapters
    made["host"] += held
    return Takes(**{part: int(size) for part, size in made.items()})


def _adapters(engine: Engine, given: Mapping[str, Any], model: Architecture) -> tuple[float, float]:
    """LoRA, in the share and outside: two narrow matrices beside each of seven, for as many adapters as are held."""
    lora = engine.lora
    if not lora or off(given.get(plain(lora.switch))):
        return 0.0, 0.0
    rank, at_once = (number(given.get(plain(name))) or usual for name, usual in (lora.rank, lora.at_once))
    wide = model.moe_intermediate_size or model.intermediate_size or _LORA_INTERMEDIATE * model.hidden_size
    attention, feed = 8 * model.hidden_size, 3 * (model.hidden_size + wide) * max(1, model.experts)
    one = rank * model.layers * (attention + feed) * _LORA_BYTES
    return at_once * one, (number(given.get(plain(lora.held))) or 0.0) * one


def refused(engine: Engine, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(option, found, remedy) for what cannot be counted."""
    for option, one in engine.uncounted.items():
        name, equals, value = option.partition("=")
        asked = {
            key: told
            for key, told in given.items()
            if key == plain(name) or (not equals and key.startswith(f"{plain(name)}."))
        }
        wanted = any(str(told) == value if equals else not off(told) for told in asked.values())
        if wanted and off(given.get(plain(one.unless))):
            yield plain(name), f"the option {name} {one.why}", one.instead
    for name, counted in ((name, given.get(plain(name))) for name in engine.counted):
        size = number(counted)
        if not off(counted) and (size is None or size < 0):
            yield plain(name), f"the option {name} is {counted!r}, and the plan has to count it", "Give a number"
    for name, value in given.items():
        over, _dot, key = name.rpartition(".")
        looked_at = (*engine.counted, *engine.uncounted, *engine.file_planned)
        if over in engine.closed and not off(value) and key not in engine.closed[over] and name not in looked_at:
            yield name, f"nobody has looked at what {name} takes of the memory", f"Leave it out of {over}"
