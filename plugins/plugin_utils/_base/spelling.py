# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What somebody probably meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection

# What other projects call what is called differently here; without the prefix of a role.
ALIASES = {
    "args": ("options",),
    "ctx_size": ("context",),
    "extra_args": ("options",),
    "max_model_len": ("context",),
    "max_num_seqs": ("concurrency",),
    "model": ("recipe", "model_path"),
    "model_name": ("served_model_name",),
    "num_ctx": ("context",),
    "tp": ("tensor_parallel_size",),
    "tp_size": ("tensor_parallel_size",),
}
_SEPARATORS = re.compile(r"[-_.:]+")


def closest(word: str, known: Collection[str], *, prefix: str = "", cutoff: float = 0.6, most: int = 3) -> list[str]:
    """Best first: another project's name for it; else names that begin with the word, or have all its words; else the
    one that is spelled most alike. ``prefix`` begins all names, so it says nothing."""
    rests = {name.removeprefix(prefix): name for name in known}
    bare = word.removeprefix(prefix)
    found = [name for name in ALIASES.get(bare.lower(), ()) if name in rests]
    if not found and (words := set(_words(bare))):
        found = [name for name in rests if name.startswith(bare)]
        found = found or [name for name in rests if words <= set(_words(name))]
        found = sorted(found, key=lambda name: -difflib.SequenceMatcher(None, bare, name).ratio())[:most]
    return [rests[name] for name in found or difflib.get_close_matches(bare, list(rests), n=1, cutoff=cutoff)]


def did_you_mean(
    word: str,
    known: Collection[str],
    *,
    prefix: str = "",
    cutoff: float = 0.6,
    most: int = 3,
    shown: Callable[[str], str] = str,
) -> str:
    """``Did you mean a or b?``, or nothing."""
    names = [shown(name) for name in closest(word, known, prefix=prefix, cutoff=cutoff, most=most)]
    return f"Did you mean {' or '.join([', '.join(names[:-1]), names[-1]][len(names) < 2 :])}?" if names else ""


def one_slip(word: str, name: str) -> bool:
    """Whether one letter is missing, too many or another one, or two neighbours are swapped."""
    if word == name or abs(len(word) - len(name)) > 1:
        return False
    short, long = sorted((word, name), key=len)
    at = next((place for place, (one, other) in enumerate(zip(short, long, strict=False)) if one != other), len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    return short[at + 1 :] == long[at + 1 :] or short[at : at + 2][::-1] + short[at + 2 :] == long[at:]


def _words(name: str) -> list[str]:
    return [part for part in _SEPARATORS.split(name.lower()) if part]
