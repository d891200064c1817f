# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every example of the guides is one that works: programs, options, variables, names of models, files, and output.

What a simulated cluster can run is run there as well (`run=site`). Programs of others are named below: only whoever
wrote them can say whether their options exist.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pathlib
import re
import shlex
import shutil
from typing import Any
from unittest import mock

import click
import pytest
import yaml
from ansible.cli.playbook import PlaybookCLI
from ansible.parsing.utils.yaml import from_yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base, layers, variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen.commands import Commands
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import summary
from engine_plans import required
from guide_examples import ROOT, Block, Command, blocks, commands, inline
from sparkmatrix.main import main, split

KINDS = {"console", "yaml", "python", "json", "text", "routeros", "nvue"}
NODE_PROGRAM = "/usr/local/lib/sparkmatrix/sparkmatrix-node"
RECIPES = {path.stem: required(*engine_recipe.read(path)) for path in engine_recipe.SHIPPED.glob("*.yml")}
KNOWN = variables.load()
# Programs whose options nothing here knows: those of any computer, and those of which a reader is told (run=by-hand).
USUAL = {"cd", "env", "export", "git", "mkdir", "pip", "python3", "sh", "tar", "umask", "unzip"}
INSTALLERS = {"https://astral.sh/uv/install.sh"}
BY_HAND = {
    "ansible-builder",
    "ansible-galaxy",
    "ansible-vault",
    "apt-get",
    "certbot",
    "dcb",
    "ethtool",
    "hf",
    "rsync",
    "sbatch",
}
INSTALLED = "~/.ansible/collections/ansible_collections/sparkmatrix/cluster/"
PLAYBOOKS = "".join(path.read_text() for path in sorted((ROOT / "playbooks").rglob("*.yml")))
PLACES = "".join(
    path.read_text()
    for room in ("plugins", "roles")
    for path in sorted((ROOT / room).rglob("*"))
    if path.suffix in {".py", ".yml", ".j2"}
)


def asked(given: dict[str, Any]) -> list[str]:
    """What preflight refuses of these variables, before it contacts a machine, whether there are one, two or four."""
    found: list[str] = []
    for count in (4, 2, 1) if given else ():
        found = refused(given, count)
        if not found:
            break
    return found


def refused(given: dict[str, Any], count: int) -> list[str]:
    hosts = {f"spark{n + 1}": {"spark_rank": n, "ansible_host": f"192.0.2.{n + 1}", **given} for n in range(count)}
    settings = base.Settings(severity=given.get("preflight_severity", {}))
    context = base.Context(
        layers=frozenset(layers.LAYERS),
        hosts=hosts,
        play_hosts=list(hosts),
        variables=KNOWN,
        settings=settings,
    )
    made = preflight_checks.run(preflight_checks.INVENTORY, context)
    return [str(finding) for finding in made if finding.severity == "error"]


# --- what stands in the guides ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.place)
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.kind in KINDS, block.place
    assert block.kind == "text" or block.marks in {"", "run=site", "run=head", "run=by-hand"}, block.place
    if block.kind == "console":
        assert list(commands(block)), f"{block.place}: a command stands after a prompt ($)"


@pytest.mark.parametrize("block", blocks("json"), ids=lambda block: block.place)
def test_json_can_be_read(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.place)
def test_python_compiles_and_is_run(block: Block) -> None:
    compile(block.text, block.place, "exec")
    assert block.marks == "run=site", block.place
    models_are_served(block.text)


def models_are_served(text: str) -> None:
    for name in re.findall(r"""model["']?\s*[:=]\s*["']([^"']+)["']""", text):
        assert name in {found.served_model_name for found in RECIPES.values()}, name


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.place)
def test_yaml_is_what_preflight_takes(block: Block, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / ".config/hub-token"
    token.parent.mkdir()
    token.touch(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(engine_recipe.SHIPPED / "qwen3-8b.yml", tmp_path / "my-model.yml")
    text = block.text.replace("/home/me/recipes", str(tmp_path)).replace(
        "{{ vault_batch_key }}", "0123456789abcdef" * 2
    )
    document = yaml.safe_load(text)
    if isinstance(document, list):  # a playbook
        for play in document:
            assert not asked(play.get("vars", {})), block.place
            for task in play.get("tasks", []):
                role = task.get("ansible.builtin.include_role", {}).get("name", "")
                assert (ROOT / "roles" / role.rpartition(".")[2]).is_dir(), block.place
                own = {name: value for name, value in task.get("vars", {}).items() if name in KNOWN}
                assert own == task.get("vars", {}) and not asked(own), block.place
            imported = play.get("ansible.builtin.import_playbook", "")
            assert not imported or (ROOT / f"{imported.rpartition('.')[2]}.yml").is_file(), block.place
        return
    if "model" in document:  # a recipe
        assert engine_recipe.parse(document, block.place, "recipe")[1] == []
        return
    if "all" in document:  # an inventory
        assert set(document["all"]["children"]) <= {"sparks", "sparks_leaving"}, block.place
        return
    for name in document:
        assert name in KNOWN or name.startswith("ansible_"), f"{block.place}: {name}"
    assert asked(document) == [], block.place


def test_the_quick_start_asks_the_model_that_its_inventory_serves() -> None:
    inventory = ROOT / "inventories/2spark/group_vars/sparks.yml"
    name = yaml.safe_load(inventory.read_text())["engine_recipe"]
    page = (ROOT / "docs/start/with-ansible.md").read_text()
    assert f"engine_recipe={name}\n" in page
    assert f"sparkmatrix plan {name}`" in (ROOT / "README.md").read_text()
    assert re.findall(r'"model": "([^"]+)"', page) == [RECIPES[name].served_model_name]


# --- commands --------------------------------------------------------------------------------------------------------


def example(path: str) -> pathlib.Path:
    """The reader's own inventory is a copy of one that is shipped."""
    return ROOT / re.sub(r"inventories/mine|~/sparkmatrix/mine", "inventories/2spark", path.removeprefix(INSTALLED))


def parts_of(names: list[str]) -> set[str]:
    """Tags that playbooks have besides the layers."""
    plays = [play for name in names for play in yaml.safe_load((ROOT / name).read_text())]
    parts = {part for play in plays for part in (play.get("vars") or {}).get("spark_parts", {})}
    return parts | {tag for play in plays for task in play.get("tasks", ()) for tag in task.get("tags", ())}


def playbook(words: list[str]) -> None:
    cli = PlaybookCLI(["ansible-playbook", *words])
    cli.init_parser()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            options = cli.parser.parse_args(words)
        except SystemExit:
            raise AssertionError(f"{words}: {said.getvalue()}") from None
    given: dict[str, Any] = {}
    for text in options.extra_vars or []:
        if text[0] == "@":  # a file of the reader's own
            continue
        pairs = from_yaml(text) if text[0] == "{" else dict(word.split("=", 1) for word in shlex.split(text))
        given.update(pairs)
    assert options.args
    options.args = [re.sub(r"sparkmatrix\.cluster\.(\w+)", r"playbooks/\1.yml", name) for name in options.args]
    for name in options.args:
        assert (ROOT / name).is_file(), name
    for path in options.inventory or []:
        assert path.startswith(".lab/") or example(path).exists(), path  # of the lab, where it is up
    for tag in [tag for text in options.tags or [] for tag in text.split(",")]:
        assert tag in {*layers.KNOWN_TAGS, *parts_of(options.args)}, tag
    for name in given:
        assert name in KNOWN or re.search(rf"\b{name}\b", PLAYBOOKS), name
    assert asked({name: value for name, value in given.items() if name in KNOWN}) == []


def node_program(words: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            _node_program.parser().parse_args(words)
        except SystemExit as end:
            assert end.code == 0, f"{words}: {said.getvalue()}"


def command(words: list[str]) -> None:
    """Of the owner's computer: what click takes, and its playbook or the program on the head takes of the rest."""
    if words[:1] == ["-i"]:
        assert "/" not in words[1] or example(words[1]).exists(), words
        words = words[2:]
    if not words or words[-1] in {"--help", "--version"}:
        assert set(words[:-1]) <= set(main.commands), words
        return
    assert words[0] in main.commands, words
    try:
        with mock.patch.dict("os.environ"):  # where it notes how it was called
            given = main.commands[words[0]].make_context(words[0], words[1:]).params
    except click.UsageError as exc:
        raise AssertionError(f"{words}: {exc}") from None
    options = given.get("options", ())
    name = given.get("playbook") or verbs.VERBS[words[0]][0]
    if words[0] in {"plan", "models", "up", "run"}:
        model, options = split(options)
        assert words[0] == "models" or not model or model in {*RECIPES, "MODEL"}, words
    if name:
        playbook([f"playbooks/{name}.yml", *options])
    elif options:
        node_program([words[0], *options])


def make(words: list[str]) -> None:
    for target in (word for word in words if "=" not in word):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def journal(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u")
    parser.add_argument("-t")
    named = parser.parse_args(words)
    assert (named.u or named.t) in PLACES, words


def shown(words: list[str]) -> None:
    for path in words:
        name = path.rpartition("/")[2]
        known = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", PLACES) or path.endswith("/keys/alice.key")
        ours = path.startswith("/etc/sparkmatrix/") and known
        assert ours or re.fullmatch(r"/opt/sparkmatrix/models/huggingface/hub/models--[\w.-]+/refs/main", path), path


def written(words: list[str]) -> None:
    """Programs of this repository, and files of it that the reader copies or edits."""
    for word in words:
        if "/" in word and not word.startswith("inventories/mine"):
            assert example(word).exists() or word in PLACES, word


def peer(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for name in "AfN":
        parser.add_argument(f"-{name}", action="store_true")
    for name in "LF":
        parser.add_argument(f"-{name}")
    parser.add_argument("host")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    command = parser.parse_args(words).command
    if command and command != ["fabric-status"]:
        one(command)


def request(words: list[str]) -> None:
    assert "-d" in words or "-H" in words or INSTALLERS & set(words), words
    for body in [words[number + 1] for number, word in enumerate(words) if word == "-d"]:
        models_are_served(json.dumps(json.loads(body)))


CHECKS = {
    "ansible-playbook": playbook,
    NODE_PROGRAM: node_program,
    "sparkmatrix": command,
    "eval": lambda words: every(words[0].strip("'")[2:-1]),
    "make": make,
    "journalctl": journal,
    "cat": shown,
    "ssh": peer,
    "curl": request,
    "cp": lambda words: written(words[1:]),
    "$EDITOR": lambda words: written([str(example(word)) for word in words]),
    "python": lambda words: written(words[:1]),
    "pytest": lambda words: written([word for word in words if "/" in word]),
    "ansible-doc": lambda words: written([f"plugins/modules/{words[0].rpartition('.')[2]}.py"]),
}


def one(words: list[str]) -> None:
    if "=" in words[0] and words[0].split("=")[0].isidentifier():  # KEY=$(...)
        inner = re.fullmatch(r"\w+=\$\((.*)\)", words[0])
        return every(inner[1]) if inner else one(words[1:])
    if words[0] == "uvx":
        words = words[3:] if words[1] == "--from" else [words[1].partition("@")[0], *words[2:]]
    if words[0] == "sudo":
        words = words[3:] if words[1] == "-u" else words[1:]
        if words[0] == "sparkmatrix":
            return node_program(words[1:])
    name = words[0].removeprefix(".venv/bin/")
    if name in CHECKS:
        return CHECKS[name](words[1:])
    assert name.rpartition("/")[2] in USUAL | BY_HAND, f"nothing checks {name!r}"
    return None


def every(text: str) -> None:
    text = re.sub(r"\$\((.*)\)", lambda match: shlex.quote(f"$({match[1]})"), text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&|>")
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in [*lexer, "&&"]:
        if word in {"&&", "|"}:
            if words and words[0] not in {"cut", "grep"}:
                one(words)
            words, skip = [], False
        elif word == ">":
            skip = True
        elif not skip:
            words.append(word)


COMMANDS = [command for block in blocks("console") for command in commands(block)] + inline()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.place)
def test_a_command_is_one_that_exists(command: Command) -> None:
    every(command.text)
    by_hand = BY_HAND & set(re.findall(r"(?<![\w.-])[a-z-]+(?![\w.-])", command.text))
    assert by_hand == set() or command.marks == "run=by-hand", command.place


# --- output ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", [block for block in blocks("text") if block.marks.startswith("plan:")], ids=lambda block: block.place
)
def test_the_plan_that_is_shown_is_the_one_that_is_printed(block: Block) -> None:
    """`plan: MACHINES RECIPE`; a `…` stands for what was left out of a line."""
    count, name = block.marks.split()[1:]
    settings = UserSettings(only_print=True, requirements=("vllm==0.33.0", "ray[default]==2.60.0"))
    hosts = [f"spark{number + 1}" for number in range(int(count))]
    printed = plan(RECIPES[name], assumed_facts(hosts), settings, {}).summary
    for line in block.text.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert any(re.fullmatch(pattern, one_line) for one_line in printed), line


@pytest.mark.parametrize(
    "block", [block for block in blocks("text") if block.marks == "summary"], ids=lambda block: block.place
)
def test_the_end_of_a_run_that_is_shown_is_the_one_that_is_printed(block: Block) -> None:
    names = ("access", "os_stabilization", "fabric", "ray", "engine", "verify")
    figures = {"ray": "2 of 2 nodes", "fabric": "direct", "engine": "first token", "verify": "tokens/s"}
    run = summary.Run(
        "site",
        ("spark1", "spark2"),
        summary.Login("spark1", "nvidia@10.0.0.11"),
        Commands(".venv/bin/ansible-playbook", "", "-i inventories/mine", ("site", "verify", "reset")),
        layers=tuple(summary.Layer(name, figures.get(name, "")) for name in names),
        services=(
            summary.Service(
                "qwen3.8-flash-next-nvfp4",
                words="vllm on 2 nodes, context 262144 x 2 requests",
                low=22,
                high=72,
                measured=37,
            ),
        ),
        way=summary.Way("http://127.0.0.1:8000/v1", "/etc/sparkmatrix/engine-key.env", private=True),
    )
    printed = [re.sub(r"\s+", " ", line) for line in re.split(r"\n(?! )", "\n".join(summary.lines(run)))]
    for line in block.text.splitlines():
        pattern = ".*".join(re.escape(re.sub(r"\s+", " ", part)) for part in line.split("…"))
        assert any(re.fullmatch(pattern, one_line) for one_line in printed), f"{line}: {printed}"
