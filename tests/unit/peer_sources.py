# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Facts of public recipes (fixtures/peer_corpus.json) written back as a file of their format, and what has to come out.

The facts are names and values that the recipes' authors published, with the commit that was read; no text of theirs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, errors
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_command, as_engine, placement, read

FACTS = Path(__file__).resolve().parent / "fixtures/peer_corpus.json"
SECRET = "sk-0123456789abcdefghij0123456789"
_ADDRESS, _HEAD = "<address>", "192.168.177.11"
YAML = ("sparkrun-v1", "sparkrun-v2", "spark-vllm-docker")
PROMISED = (*YAML, "docker-run", "compose", "env-file")
# Options and variables that say where a rank is and whom it meets.
PLACED = frozenset(
    {
        *(
            "--port",
            "--host",
            "--nnodes",
            "--node-rank",
            "--master-addr",
            "--master-port",
            "--dist-init-addr",
            "--rank",
        ),
        *("--master", "--world-size", "--data-parallel-address", "-dpa", "--headless"),
    }
)
RAY = "--distributed-executor-backend"


def facts() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return made


def real(value: Any) -> Any:
    """Words that stand in the facts for what nobody should publish."""
    if isinstance(value, dict):
        return {key: real(item) for key, item in value.items()}
    if isinstance(value, list):
        return [real(item) for item in value]
    if not isinstance(value, str):
        return value
    value = value.replace("<secret>", SECRET).replace(_ADDRESS, _HEAD).replace("<user>", "somebody")
    return re.sub(r"<([A-Za-z][\w -]*)>", lambda match: match[1].replace(" ", "-"), value)


def words(fact: dict[str, Any]) -> list[str]:
    """The command as bash has it."""
    made = [*fact.get("program", []), *fact.get("positional", [])]
    alone = bool(fact.get("nodes", {}).get("solo_only"))  # their tool sets the size then
    for name, inline, given, *places in fact.get("options", []):
        values = ["1"] if alone and places and places[0] == ["tensor_parallel"] else given
        made += [f"{name}={' '.join(values)}"] if inline else [name, *values]
    if fact["kind"] == "compose":  # what is not set has its default
        made = [re.sub(r"\$\{\w+:-([^{}]*)\}", r"\1", str(word)) for word in made]
        made = [word for word in made if not re.fullmatch(r"\$\{\w+:\+[^{}]*\}", word)]
    return [str(word) for word in real([word.replace("{model}", fact.get("model") or "") for word in map(str, made)])]


def open_values(fact: dict[str, Any]) -> dict[str, str]:
    """Variables that the file leaves to whoever uses it, with values as they might give them."""
    text = " ".join([*words(fact), str(fact.get("image") or "")])
    known = {**dict.fromkeys(("IMAGE", "image"), "example.org/engine:1.0"), "PORT": "8000"}
    ends = {"IMAGE": known["IMAGE"], "MODEL": "acme/model", "CONTAINER": "acme/model", "DIR": "/srv/of-theirs"}
    return {
        name: next((value for end, value in ends.items() if name.endswith(end)), known.get(name, "1"))
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)(?=\}|[^\w:}]|$)", text)
        if name not in placement.VARIABLES
    }


def write(fact: dict[str, Any], directory: Path, given: Mapping[str, str]) -> Path:
    """The file, and the mods beside it. ``given``: values of its user."""
    for named in fact.get("mods", []):
        mod = re.sub(r"^@[^/]+/", "", named)
        if not mod.startswith("/") and ".." not in mod:
            (directory / mod).mkdir(parents=True, exist_ok=True)
            (directory / mod / "run.sh").write_text("true\n")
    kind = fact["kind"]
    if kind in YAML:
        path, text = directory / "recipes/their.yaml", _yaml(fact)
    elif kind == "compose":
        path, text = directory / "compose.yaml", _compose(fact)
        (directory / ".env").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    elif kind == "env-file":
        path, text = directory / "their.env", _env(fact) + "".join(f"{key}={one}\n" for key, one in given.items())
    else:
        before = "".join(f"{name}={shlex.quote(value)}\n" for name, value in given.items())
        path, text = directory / "their.sh", before + _shell(fact)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def quoted(word: str) -> str:
    if "$" in word:
        return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'
    return shlex.quote(word)


def _yaml(fact: dict[str, Any]) -> str:
    defaults, doubled = fact.get("defaults", {}), bool(fact.get("doubled"))
    svd = fact["kind"] == "spark-vllm-docker"

    def word(text: str, places: list[str]) -> str:
        if places and str(defaults.get(places[0])) == text:
            return f"{{{places[0]}}}" if quoted(text) == text else f"'{{{places[0]}}}'"
        text = quoted(text)
        return text.replace("{", "{{").replace("}", "}}") if doubled or svd else text

    made: dict[str, Any] = {"recipe_version": "2" if fact["kind"] == "sparkrun-v2" else "1"}
    for key, name in (
        ("model", "model"),
        ("model_revision", "revision"),
        ("runtime", "runtime"),
        ("container", "image"),
    ):
        if fact.get(name) and not (svd and key == "model_revision"):
            made[key] = fact[name]
    for key in ("mods", "defaults"):
        if fact.get(key):
            made[key] = fact[key]
    made |= {key: value for key, value in fact.get("nodes", {}).items() if value is not None}
    made["env"] = fact.get("environment", [])
    made |= {key: value for key, value in fact.get("build", {}).items() if key == "build_args"}
    if fact.get("container_options"):
        made["executor_config"] = fact["container_options"]
    if fact.get("mounts"):
        made.setdefault("executor_config", {})["volumes"] = fact["mounts"]
    for key, name in (("pre_exec", "pre"), ("post_exec", "post")):
        if fact.get(name):
            made[key] = [" ".join([one["program"], *one.get("files", [])]) for one in fact[name]]
            made[key] = [re.sub(r"^(\S+=\S*) ", r"\1 python3 ", one) for one in made[key]]  # a variable before it
    for key, inner in fact.get("other_keys", {}).items():
        made[key] = dict.fromkeys(inner, "x") if isinstance(inner, list) else inner
    if fact.get("options") or fact.get("program"):
        first = [quoted(str(one)) for one in [*fact.get("program", []), *fact.get("positional", [])]]
        lines = [" ".join(first)]
        for name, inline, values, *places in fact.get("options", []):
            given = [word(str(value), places[0] if places else []) for value in values]
            lines.append(f"  {name}={given[0]}" if inline else " ".join([f"  {quoted(name)}", *given]))
        before = [f"{name}={quoted(value.rstrip(';'))}" for name, value in fact.get("command_variables", {}).items()]
        shell = [one for one in fact.get("before_program", []) if one in ("taskset", "mkdir")]
        command = " \\\n".join(lines)
        if "taskset" in shell:
            command = f"taskset -c 0-9 {command}"
        if "mkdir" in shell:
            command = f"mkdir -p /tmp/x\n{command}"
        made["command"] = f"{' '.join(before)} {command}".strip() + "\n"
    return yaml.safe_dump(real(made), sort_keys=False)


def _shell(fact: dict[str, Any]) -> str:
    given = [quoted(word) for word in words(fact)]
    if fact["kind"] == "script":
        lines = [f"export {name}={quoted(str(value))}" for name, value in real(fact.get("environment", {})).items()]
        return "\n".join(["#!/bin/bash", *lines, " ".join(given)]) + "\n"
    made = ["docker run"]
    options = dict(fact.get("container_options", {}))
    entrypoint = options.pop("--entrypoint", None)
    for name, value in options.items():
        if name.startswith("-"):
            made += [name if value is True else f"{name} {quoted(str(item))}" for item in
                     (value if isinstance(value, list) else [value])]  # fmt: skip
    for name, value in fact.get("environment", {}).items():
        made.append(f"-e {name}" if value == "<from the caller>" else f"-e {quoted(real(f'{name}={value}'))}")
    made += [f"-v {quoted(real(mount))}" for mount in fact.get("mounts", [])]
    made += [f"-p {quoted(real(port))}" for port in fact.get("ports", [])]
    if entrypoint is not None:
        made.append(f"--entrypoint {quoted(entrypoint)}")
        if not fact.get("shell") and words(fact)[:1] == [entrypoint]:
            given = given[1:]
    made.append(quoted(real(fact.get("image") or "some/image:1")))
    if fact.get("shell"):
        inner = [quoted(f"{'exec ' if 'exec' in fact.get('before_program', []) else ''}{' '.join(given)}")]
        given = ["-c", *inner] if entrypoint else ["bash", "-c", *inner]
    return "#!/bin/bash\n" + " \\\n  ".join([*made, *given]) + "\n"


def _compose(fact: dict[str, Any]) -> str:
    service: dict[str, Any] = {"image": fact.get("image") or "some/image:1"}
    options = dict(fact.get("container_options", {}))
    devices = options.pop("deploy.devices", None)
    if devices:
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    service |= options
    environment = fact.get("environment", {})
    service["environment"] = {
        name: None if value == "<from the caller>" else value for name, value in environment.items()
    }
    service["volumes"], service["ports"] = fact.get("mounts", []), fact.get("ports", [])
    given = words(fact)
    entrypoint = options.get("entrypoint") or []
    if fact.get("shell"):
        text = " ".join(quoted(word).replace("$(", "$$(") for word in given)
        service["command"] = [text] if entrypoint else ["bash", "-lc", text]
    elif given:
        given = given[len(entrypoint) :] if entrypoint and given[: len(entrypoint)] == entrypoint else given
        given = given[1:] if entrypoint and entrypoint[-1:] == given[:1] else given
        service["command"] = [word.replace("$(", "$$(") for word in given]
    return yaml.safe_dump({"services": {"engine": real(service)}}, sort_keys=False)


def _env(fact: dict[str, Any]) -> str:
    settings = real(fact.get("settings", {}))
    lines = [f"{name}={quoted(str(value))}" for name, value in settings.items()]
    if not fact.get("arrays"):
        lines += [f"{name}={quoted(str(value))}" for name, value in real(fact.get("environment", {})).items()]
    if "SERVE_ARGS" in fact.get("arrays", []):
        given = [quoted(word) for word in words({"kind": "", "options": fact.get("options", [])})]
        lines.append(f"SERVE_ARGS=( {' '.join(given)} )")
        pairs = [quoted(f"{name}={value}") for name, value in real(fact.get("environment", {})).items()]
        lines.append(f"ENV_EXTRA=( {' '.join(pairs)} )")
        lines.append(f"MODS=( {' '.join(map(quoted, fact.get('mods', [])))} )")
    return "\n".join(lines) + "\n"


class Taken:
    """What became of one fact."""

    def __init__(self, fact: dict[str, Any], directory: Path, given: Mapping[str, str] | None = None) -> None:
        self.fact, self.refused, self.own = fact, "", ""
        self.recipe: Recipe | None = None
        self.own_left: list[str] = []
        self.given = given or {}
        self.reason, self.first_reason = "", ""
        self.path = write(fact, directory, self.given)
        try:
            self.peer = read.read(str(self.path))
            self.document = as_command.made(self.peer)
        except SparkError as exc:
            self.refused = exc.found
            return
        self.text = as_command.printed(self.document)
        self.losses = [str(loss) for loss in self.peer.losses]
        self.placed = [str(loss) for loss in self.peer.placed]
        self.recipe, findings = engine_recipe.parse(self.document, str(self.path), "theirs")
        self.refused = "; ".join(finding.found for finding in findings)
        try:
            made = as_engine.made(self.peer)
            self.own, self.own_left = made.document["engine"], made.left_out
        except SparkError as exc:
            self.own_left = [exc.found]

    @property
    def starts(self) -> bool:
        """Whether the file says what is started, and not only values for a launcher."""
        return bool(self.fact.get("program")) or self.fact["kind"] != "env-file" or "names no model" not in self.reason

    @property
    def said(self) -> str:
        return "\n".join([*self.losses, *self.placed])

    def _with_values(self, word: str) -> str:
        for name, value in self.given.items():
            word = re.sub(rf"\$\{{{name}\}}|\${name}\b", value, word)
        return word

    def not_planned(self) -> str:
        """What a plan refuses with as many assumed machines as it needs, the user's word given; empty: nothing."""
        recipe = self.recipe
        if recipe is None:
            return self.refused
        paths = [mount.source for mount in recipe.mounts] + [recipe.model] * recipe.model.startswith("/")
        settings = UserSettings(
            allow=("command", "moving-image"),
            mount_directories=("/opt/sparkmatrix/models", *map(str, map(Path, paths))),
            only_print=True,
        )
        machines = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(recipe.min_nodes)])
        made = engine_plan.plan(recipe, machines, settings, {})
        return "" if made.plans else "; ".join(finding.found for finding in errors(made.findings))

    def argv(self) -> list[str]:
        """Of rank 0, as bash splits it where it is a text; without what stands around the engine's own command."""
        command = self.document["command"]
        made = list(command["words"] if "words" in command else ["bash", "-lc", command["script"]])
        if made[:1] == ["bash"]:
            text = re.sub(r"(?s)^(?:\(\n.*?\n\) \|\| exit 1\n)*", "", str(made[2]))
            text = re.sub(r"^export .*\n", "", text, flags=re.MULTILINE)
            made = shlex.split(text.replace("\\\n", " "))
        wanted = words(self.fact)
        return made[made.index(wanted[0]) :] if wanted and wanted[0] in made else made

    def changed(self) -> Iterator[str]:
        """Words that are others than in the source, but for places; none may be."""
        wanted, got = [self._with_values(word) for word in words(self.fact)], self.argv()
        if not wanted or self.fact["kind"] == "env-file":
            return
        position = 0
        before = ""
        for number, word in enumerate(wanted):
            if position < len(got) and _same(word, got[position], before, self.document):
                position += 1
            elif not _left(word, before, wanted[number + 1 : number + 2], self.said):
                yield f"{before} {word}: {got[position : position + 2]}"
            before = word
        rest = got[position:]
        known = {word for name in PLACED for word in (name,)} | {"--served-model-name", *self.peer.served}
        yield from (f"more: {word}" for word in rest if "@" not in word and word not in known)

    def silent(self) -> Iterator[str]:
        """Of variables, mounts, mods and keys: what is neither in the recipe nor named."""
        if self.fact["kind"] == "script":
            return
        environment, said = self.document.get("environment", {}), self.said
        for name, value in real(self.fact.get("environment", {})).items():
            same = str(environment.get(name)) == str(value) or name in self.text
            if not same and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said):
                yield f"variable {name}"
            if (
                name in environment
                and "@" not in environment[name]
                and not re.search(r"\$|{(?:config|launch)\.", str(value))
            ):
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                if environment[name] != shown and _HEAD not in shown:
                    yield f"variable {name}: {value!r} is {environment[name]!r}"
        targets = [one["target"] for one in self.document.get("mounts", [])]
        for mount in real(self.fact.get("mounts", [])):
            target = re.sub(r":(?:ro|rw|z)\b.*$", "", mount).rpartition(":")[2]
            if target not in targets and mount not in said and target not in said:
                yield f"mount {mount}"
        built = " ".join(self.document.get("build", {}).get("mods", []))
        yield from (f"mod {mod}" for mod in self.fact.get("mods", []) if mod.rpartition("/")[2] not in built + said)
        yield from (f"key {key}" for key in self.fact.get("other_keys", {}) if key not in said and key not in SAID)
        for one, value in self.fact.get("container_options", {}).items():
            name = one.lstrip("-").partition(".")[0]
            kept = ("entrypoint", "env-file", "volumes", "options from a variable")
            if name not in said and name not in kept and value not in (False, [], ""):
                yield f"container option {one}"


def outcome(fact: dict[str, Any], directory: Path) -> Taken:
    """As the file is; and if that is not planned, with what its refusal asks the user for."""
    first = directory / "as-it-is"
    first.mkdir()
    made = Taken(fact, first)
    made.reason = made.not_planned()
    if made.reason:
        second = directory / "with-values"
        second.mkdir()
        image = {} if fact.get("image") or fact["kind"] in YAML else {"IMAGE": "example.org/engine:1.0"}
        again = Taken(fact, second, {**open_values(fact), **image})
        again.reason, again.first_reason = again.not_planned(), made.reason
        return again
    return made


SAID = frozenset({"min_sparkrun_version", "metadata"})


def _same(wanted: str, got: str, before: str, document: dict[str, Any]) -> bool:
    if wanted == got:
        return True
    name = got.partition("=")[0] if got.startswith("--") else before
    if name in PLACED and "@" in got:
        return True
    if got == "@model@":
        return bool(wanted == document["model"])
    # An address, or a variable that says which rank it is, inside of a text.
    return "@" in got and bool(re.search(r"\$|192\.168\.177\.11", wanted))


def _left(word: str, before: str, following: list[str], said: str) -> bool:
    """Named, or the executor of which there is none here."""
    name = word.partition("=")[0]
    value = word.partition("=")[2]
    if (name == RAY and "ray" in (*following, value)) or (before == RAY and word == "ray"):
        return f"{RAY} ray" in said
    if name == "--headless":
        return True
    named = [one for one in (name, before) if one]
    return any(f"{one} …" in said for one in named) or bool(word.startswith("--") and word in said)
