# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What each verb does. Their table is the collection's (``_screen/verbs.py``), whose messages use it as well."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import endpoint
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import chosen_model
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import ansible_options, log, page, verbs
from click.shell_completion import CompletionItem

from sparkmatrix import COLLECTION, PLACE, ROOT, UNFINISHED, USUAL, first, head, stems
from sparkmatrix.play import DONE, INTERRUPTED, REFUSED, play

ANSIBLE = "[OPTIONS OF ANSIBLE]"
PARTS = ("--check", "-C", "--tags", "-t", "--skip-tags", "--limit", "-l")  # of what a verb does
QUESTION = "Say hello in one short sentence."
CODES = """\b
Exit codes: 0 done; 1 refused or failed; 2 wrong command line;
            4 a machine does not answer; 130 interrupted."""


@dataclass
class Call:
    """``given``: the inventory that was named; ``password``: that was typed."""

    given: str | None = None
    password: str = ""

    @property
    def typed(self) -> str:
        return f"{verbs.called()} -i {shlex.quote(self.given)}" if self.given else verbs.called()

    @cached_property
    def place(self) -> Path:
        """Where the inventory is, or would be. Without a name: the only one that there is."""
        known = sorted(path.name for path in PLACE.glob("[!.]*/") if path.suffix != UNFINISHED)
        if not self.given and len(known) > 1:
            raise click.UsageError(f"You have several clusters; name one: -i {', -i '.join(known)}")
        if self.given and self.given not in known and ("/" in self.given or Path(self.given).exists()):
            return Path(self.given).expanduser()
        return PLACE / (self.given or next(iter(known), USUAL))

    @property
    def where(self) -> str:
        return log.from_home(str(self.place))

    @property
    def inventory(self) -> Path:
        if not self.place.exists():
            raise click.ClickException(f"There is no inventory {self.where}. It is made by: {self.typed} up")
        return self.place

    @cached_property
    def head(self) -> head.Head:
        return head.of(self.inventory, self.password)

    def begin(self, where: str) -> int:
        os.environ[verbs.GOES_ON] = "yes"
        code, self.password = first.inventory(self.place, where)
        return code

    def play(self, name: str, *options: str, as_json: bool = False) -> int:
        """On the machines, with the password of sudo where it wants one and Ansible is not told otherwise."""
        told = any(word == "-K" or "become-pass" in word for word in options)
        secret = "" if told else self.head.sudo()
        return play(name, self.place, options, ("", secret), as_json=as_json)


class Verbs(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(verbs.VERBS)  # in their order


def _named(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    call = ctx.find_root().ensure_object(Call)
    call.given = value or call.given
    os.environ[verbs.CALLED_BY] = call.typed  # for what a run tells people to type next
    os.environ["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")


@click.group(cls=Verbs, epilog=CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-i", metavar="NAME|PATH", help="Inventory: a name below ~/sparkmatrix, or a path.", callback=_named)
@click.version_option(_node_program.VERSION, prog_name="sparkmatrix")
def main(**_values: Any) -> None:
    """One LLM server out of 1 to N DGX Spark machines.

    \b
    From boxes to an answer:  sparkmatrix up
    Does my model fit?        sparkmatrix plan MODEL     (needs no machine)

    Each verb prints the ansible-playbook line that it runs.
    """


models = partial(stems, "roles/engine/files/recipes/*.yml")
playbooks = partial(stems, "playbooks/*.yml")


def _complete(found: Callable[[], list[str]]) -> Callable[..., list[CompletionItem]]:
    return lambda _ctx, _parameter, typed: [CompletionItem(name) for name in found() if name.startswith(typed)]


json_ = click.option("--json", "as_json", is_flag=True, help="For programs.")
yes_ = click.option("-y", "--yes", is_flag=True, help="Go on without asking whether to.")
nodes_ = click.option("--nodes", type=click.IntRange(1, 64), metavar="N", help="For N Sparks without an inventory (2).")
served = click.option(
    "--model",
    metavar="NAME",
    help="Where several are served.",
    callback=lambda _ctx, _parameter, name: ("--model", name) if name else (),
)


def verb(name: str, takes: str = "", *, rest: str = ANSIBLE) -> Callable[..., Any]:
    """``rest``: what it does not know goes to the playbook, or to the program on the head."""

    def checked(ctx: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        own = [option for parameter in ctx.command.params for option in parameter.opts]
        if rest == ANSIBLE and (wrong := ansible_options.refused(split(value)[1] if takes else value, own)):
            raise click.UsageError(wrong)
        return value

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        own = [click.Option(["-i"], metavar="NAME|PATH", help="Inventory.", expose_value=False, callback=_named)]
        find = _complete(models if "MODEL" in takes else list)
        how: dict[str, Any] = {"metavar": f"{takes} {rest}".strip(), "shell_complete": find, "callback": checked}
        more = [click.Argument(["options"], nargs=-1, type=click.UNPROCESSED, **how)] if rest else []
        params = [*reversed(getattr(function, "__click_params__", [])), *more, *own]
        function.__click_params__ = []  # type: ignore[attr-defined]  # click's own
        settings = {"ignore_unknown_options": bool(rest)}
        words = {"help": verbs.VERBS[name][1], "epilog": verbs.OPTIONS if rest == ANSIBLE else ""}
        main.command(name, params=params, context_settings=settings, **words)(click.pass_obj(function))
        return function

    return made


def split(options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The model or other word before the options, where there is one."""
    word = options[0] if options and not options[0].startswith("-") else ""
    return word, options[1:] if word else options


def extra(**values: str) -> tuple[str, ...]:
    return tuple(word for name, value in values.items() if value for word in ("-e", f"{name}={value}"))


@verb("init", rest="")
@click.argument("where", nargs=-1, metavar="[ADDRESS…|NETWORK]")
def _init(call: Call, where: tuple[str, ...]) -> int:
    if call.place.exists():
        raise click.ClickException(f"{call.where} is there already: edit it, or name another one: -i NAME")
    if (code := call.begin(" ".join(where))) == DONE:
        click.echo(f"Inventory: {call.where}. Next: {call.typed} up")
    return code


@verb("plan", "[MODEL]")
@nodes_
@click.option("--details", is_flag=True, help="The command line of the engine, too.")
@json_
def _plan(call: Call, options: tuple[str, ...], nodes: int | None, details: bool, as_json: bool) -> int:
    model, options = split(options)
    shipped = sorted(COLLECTION.glob(f"inventories/{nodes or 2}spark*"))
    if nodes and not shipped:
        raise click.UsageError(f"Without an inventory: --nodes 1, 2, 3, 4 or 8. For others: {verbs.called()} init")
    place = shipped[0] if nodes or not call.place.exists() else call.place
    more = extra(engine_recipe=model, engine_plan_details="true" if details else "")
    return play("plan", place, (*more, *options), as_json=as_json)


@verb("models", "[WORD]")
@nodes_
@json_
def _models(call: Call, options: tuple[str, ...], nodes: int | None, as_json: bool) -> int:
    word, options = split(options)
    place = call.place if call.place.exists() and not nodes else None
    more = extra(recipes_nodes="" if place else str(nodes or 2), recipes_search=word)
    return play("recipes", place, (*more, *options), as_json=as_json)


@verb("up", "[MODEL]")
@click.option("--on", metavar="ADDRESS,…", default="", help="Machines or network of a new inventory.")
@yes_
def _up(call: Call, options: tuple[str, ...], on: str, yes: bool) -> int:
    model, options = split(options)
    if on and call.place.exists():
        click.echo(f"{call.where} is there already, so --on says nothing", err=True)
    if not call.place.exists() and (code := call.begin(on.replace(",", " "))):
        return code
    kept, options = choose(call.place, model, options)
    os.environ[verbs.GOES_ON] = "yes"
    if code := call.play("preflight", *options):
        return code
    part = any(option.startswith(PARTS) for option in options)
    what = "This changes cable ports, system settings and services of the machines. The way back:"
    agree(yes or part, f"{what}\n  {call.typed} undo\nGo on?", default=True)
    if (code := call.play("site", *options)) or part:
        return code
    kept()
    click.secho(f"\n> {QUESTION}", bold=True)
    code, _said = call.head.run(("ask",), QUESTION)
    click.echo(f'Next: {call.typed} ask "…"')
    return code


@verb("run", "MODEL")
def _run(call: Call, options: tuple[str, ...]) -> int:
    """The inventory follows when the model has answered: until then it says what serves."""
    model, options = split(options)
    if not model:
        raise click.UsageError(f"Which model? Those that fit: {call.typed} models")
    kept, options = choose(call.inventory, model, options)
    code = call.play("upgrade", *options)
    if not code and not any(option.startswith(PARTS) for option in options):
        kept()
    return code


@verb("ask", rest="")
@click.argument("question", nargs=-1, required=True)
@served
def _ask(call: Call, question: tuple[str, ...], model: tuple[str, ...]) -> int:
    text = sys.stdin.read() if question == ("-",) else " ".join(question)
    return call.head.run(("ask", *model), text)[0]


@verb("env", rest="")
@served
@json_
@click.option("--close", is_flag=True, help="Close the tunnel.")
def _env(call: Call, model: tuple[str, ...], as_json: bool, close: bool) -> int:
    if close:
        click.echo(f"{call.head.close()} tunnel(s) to {call.head.host} closed.", err=True)
        return DONE
    code, said = call.head.run(("env", "--json", *model), capture=True)
    if not code:
        found = endpoint.load(said)
        local = call.head.tunnel(found.host, found.port)
        found = replace(found, base_url=f"http://127.0.0.1:{local}/v1", port=local)
        click.echo(found.write() if as_json else found.exports())
    return code


@verb("status")
@json_
def _status(call: Call, options: tuple[str, ...], as_json: bool) -> int:
    return call.head.run(("status", "--json", *options), "")[0] if as_json else call.play("status", *options)


for _name in ("top", "logs"):
    verb(_name, rest="[ITS OPTIONS]")(lambda call, options, name=_name: call.head.run((name, *options))[0])
for _name in ("check", "bench", "doctor", "report", "support", "stop", "start", "update"):
    verb(_name)(
        json_(lambda call, options, as_json, book=verbs.VERBS[_name][0]: call.play(book, *options, as_json=as_json))
    )


@verb("undo")
@yes_
def _undo(call: Call, options: tuple[str, ...], yes: bool) -> int:
    agree(yes, "Take back all that was changed? The model stops answering", default=False)
    return call.play("reset", *options)


@verb(verbs.OTHERS)
@click.argument("playbook", shell_complete=_complete(playbooks))
def _ansible(call: Call, playbook: str, options: tuple[str, ...]) -> int:
    name = playbook.removesuffix(".yml").removeprefix("sparkmatrix.cluster.").rpartition("/")[2]
    if name not in playbooks():
        raise click.UsageError(verbs.unknown("playbook", name, playbooks()))
    return call.play(name, *options) if call.given or call.place.exists() else play(name, None, options)


def choose(place: Path, model: str, options: tuple[str, ...]) -> tuple[Callable[[], None], tuple[str, ...]]:
    """What keeps the model in the inventory, and the options of its run. What was allowed to the model before is
    allowed to no other."""
    if not model:
        return lambda: None, options
    choice, model = chosen_model.find(place), chosen_model.whole(model)
    said = ansible_options.words(options, chosen_model.ALLOW)
    allowed = said or (choice.allowed if choice.model == model else [])
    more = () if said or allowed == choice.allowed else ("-e", json.dumps({chosen_model.ALLOW: []}))

    def keep() -> None:
        if (choice.model, choice.allowed) != (model, allowed):
            for line in choice.keep(model, allowed):
                click.secho(f"{log.from_home(str(choice.path))}: {line}", fg="green" if line[0] == "+" else "red")
            if said and not choice.can_allow:
                click.echo(f"For the next run add there: {chosen_model.ALLOW}: [{', '.join(said)}]")

    return keep, (*extra(engine_recipe=model), *more, *options)


def agree(yes: bool, question: str, *, default: bool) -> None:
    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("Nobody is there to be asked; --yes says that it may go on.")
    if not (yes or click.confirm(question, default=default, err=True)):
        raise click.exceptions.Exit(REFUSED)


def program() -> None:
    try:
        plain = {"color": False} if os.environ.get("NO_COLOR") else {}
        sys.exit(main(prog_name=verbs.called(), complete_var=verbs.COMPLETE, standalone_mode=False, **plain))
    except click.Abort as exc:
        nobody = isinstance(exc.__context__, EOFError)
        click.echo("\nNobody has answered this." if nobody else "\nStopped. The same line goes on.", err=True)
        sys.exit(REFUSED if nobody else INTERRUPTED)
    except (click.ClickException, SparkError) as exc:
        error = exc if isinstance(exc, click.ClickException) else click.ClickException(str(exc))
        width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
        error.message = page.behind("Error: ", error.message, width)  # type: ignore[misc]  # click prints it
        error.show()
        sys.exit(error.exit_code)
