# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A ``docker run`` line in a script, a page or a unit, with the variables that the file itself sets; or the engine's
command alone."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import container, placement, shell
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import PeerRecipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.shell import Script, Statement

FORMAT = "docker run"
_PROGRAMS = ("docker", "podman", "nerdctl")
_RUN = re.compile(r"(?:^|[\s=/\"'`(])(?:docker|podman|nerdctl)\s+(?:container\s+)?run\s")
_ENGINE = re.compile(
    r"(?:^|[\s/\"'])(?:(?:vllm|sglang|tensorfold)\s+serve|sglang\.launch_server|vllm\.entrypoints\S+|trtllm-serve"
    r"|llama-server)(?:\s|$)"
)
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_SWITCHES = frozenset(
    {
        *("detach", "rm", "interactive", "tty", "init", "privileged", "read-only", "no-healthcheck", "publish-all"),
        *("quiet", "oom-kill-disable", "sig-proxy", "disable-content-trust", "use-api-socket"),
    }
)
_SHORT = {"e": "env", "v": "volume", "p": "publish", "u": "user", "w": "workdir", "m": "memory", "h": "hostname"}
_SHORT_SWITCHES = frozenset("ditPq")


def matches(text: str) -> bool:
    return bool(_RUN.search(text) or _ENGINE.search(text))


def read(text: str, path: str) -> PeerRecipe:
    peer = PeerRecipe(FORMAT, path)
    text = _block(text)
    # A line of systemd is split by other rules; of its words the same come out.
    text = re.sub(r"(?m)^Exec(?:Start)\s*=\s*-?", "", text) if "ExecStart=" in text else text
    made = shell.read(text, {}, path)
    found = [one for one in made.statements if _starts(one)]
    # The one that starts an engine, of several.
    found.sort(key=lambda one: placement.program(one.words)[0] is None)
    if found:
        _container(peer, found[0], made, path)
        if len(found) > 1:
            peer.lose(f"{len(found) - 1} more docker run line(s)", "one file starts several", "write each into its own")
    else:
        _alone(peer, made, path)
    _broken(peer, made, found[0] if found else None)
    used = found[0] if found else next((one for one in made.statements if one.words == peer.argv), None)
    peer.missing = list(used.missing) if used else []
    finish(peer)
    return peer


def _block(text: str) -> str:
    """Of a page the part that is a command."""
    blocks = [block for block in _FENCED.findall(text) if matches(block)]
    return next((block for block in blocks if _ENGINE.search(block)), blocks[0]) if blocks else text


def _starts(one: Statement) -> bool:
    return _run_at(one.words) >= 0


def _run_at(words: list[str]) -> int:
    """Where the words behind ``run`` begin."""
    for number, word in enumerate(words[:-1]):
        if word.rpartition("/")[2] in _PROGRAMS:
            rest = [other for other in words[number + 1 : number + 3] if other != "container"]
            if rest[:1] == ["run"]:
                return words.index("run", number) + 1
    return -1


def _container(peer: PeerRecipe, one: Statement, made: Script, path: str) -> None:
    words = one.words[_run_at(one.words) :]
    number, entrypoint = options(peer, words, Path(path).parent, made.values)
    if number >= len(words):
        cut = made.statements[made.statements.index(one) + 1 :][:1]
        why = " (a comment, or a missing \\, cuts it off there)" if cut and cut[0].words[0].startswith("-") else ""
        raise SparkError(f"its docker run line names no image{why}", path, "Give the whole line")
    peer.image = words[number]
    peer.entrypoint = entrypoint is None
    container.put_command(peer, [*([entrypoint] if entrypoint else []), *words[number + 1 :]])


def options(peer: PeerRecipe, words: list[str], base: Path, values: dict[str, str]) -> tuple[int, str | None]:
    """What stands before the image; where that is, and the entrypoint."""
    entrypoint, number = None, 0
    variables: list[str] = []
    while number < len(words):
        word = words[number]
        if not word.startswith("-") or word == "-":
            break
        number += 1
        name, value, taken = _option(word, words[number : number + 1])
        number += taken
        if name == "env":
            variables.append(str(value))
        elif name == "env-file":
            of_file = container.variables_file(peer, str(value), base)
            variables = [*(f"{key}={one}" for key, one in of_file.items()), *variables]
        elif name == "volume":
            container.mount(peer, str(value))
        elif name == "mount":
            _mount(peer, str(value))
        elif name == "entrypoint":
            entrypoint = str(value)
        else:
            if name == "publish":
                container.published(peer, str(value))
            container.option(peer, name, value)
    for text in variables:
        container.put_variable(peer, text, values)
    return number, entrypoint


def _option(word: str, following: list[str]) -> tuple[str, str | bool, int]:
    """Name, value, and how many further words it takes."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if equals:
            return name, value, 0
        return (name, True, 0) if name in _SWITCHES else (name, following[0] if following else "", 1)
    for place, letter in enumerate(word[1:], 1):
        if letter not in _SHORT_SWITCHES:
            rest = word[place + 1 :].removeprefix("=")
            name = _SHORT.get(letter, letter)
            return (name, rest, 0) if rest else (name, following[0] if following else "", 1)
    return "detach", True, 0


def _mount(peer: PeerRecipe, text: str) -> None:
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    source = parts.get("source") or parts.get("src") or ""
    target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
    container.put_mount(peer, source, target, "readonly" in parts or "ro" in parts, text)


def _alone(peer: PeerRecipe, made: Script, path: str) -> None:
    """A launcher without a container: what it exports, and the engine's command."""
    started = next((one for one in made.statements if placement.program(one.words)[0]), None)
    if started is None:
        raise SparkError(
            "it starts nothing that is known here: its command is in another program, or in a text for one",
            path,
            "Give the file with the docker run line, or the command itself",
        )
    peer.argv = started.words
    peer.put_environment({name: made.values[name] for name in made.exported if name in made.values})
    peer.put_environment(started.assigned)


def _broken(peer: PeerRecipe, made: Script, one: Statement | None) -> None:
    """Options on a line of their own: a comment, or a missing backslash, has cut the command off."""
    behind = made.statements[made.statements.index(one) + 1 :] if one else []
    for other in behind:
        if not re.match(r"--?[A-Za-z]", other.words[0]):
            break
        peer.lose(
            " ".join(other.words)[:200],
            "a comment or an end of line before it cuts the command off, so their shell never gives it",
            "compare with what they mean",
        )


def finish(peer: PeerRecipe) -> None:
    """Nodes and names out of the command."""
    engine, rest = placement.start(peer)
    nodes = placement.value_of(rest, ("--nnodes", "--world-size"))
    said = int(nodes) if nodes.isascii() and nodes.isdigit() and 0 < int(nodes) <= 4096 else 0
    product = placement.nodes(rest, engine)
    over_ray = placement.value_of(rest, placement.BACKEND) == "ray"
    peer.min_nodes = said or (product if placement.ranked(rest) or over_ray or product > 1 else 1)
    placement.ranks(peer, engine, rest)
