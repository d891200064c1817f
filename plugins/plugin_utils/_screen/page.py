# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A run as a page: what happens goes in, lines come out. Knows nothing of Ansible; the callback ``page`` feeds it.

A step is a task that did something on at least one host. What changed nothing is counted and told once per play.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import alike, named

# Kinds of lines; the callback gives them colours. The words are in the text as well.
HEADING, CHANGED, FAILED, WARNING, QUIET, ADDED, REMOVED = (
    "heading",
    "changed",
    "failed",
    "warning",
    "quiet",
    "added",
    "removed",
)
OK, SKIPPED, UNREACHABLE = "ok", "skipped", "unreachable"
FEW = 3  # unchanged steps beside others of a play, which nobody misses
MAX_WHAT = 70  # signs of what a step changed
MAX_DIFF = 40  # lines of one file's diff
MAX_OUTPUT = 15  # lines of what a command that failed has printed
ABOUT_HOST = re.compile(r"(?P<indent> *)(?P<sign>\d+\.|-|) ?(?P<host>[\w.-]+)(?P<device>(?: \S+)?): (?P<what>.+)$")
NUMBER = re.compile(r"\d+\.")
MAX_REASON = 300  # signs of why a machine does not answer
ASK_PREFLIGHT = "What to do about machines that do not answer: ansible-playbook playbooks/preflight.yml"
# Of playbooks that take a limit: how to go on with machines that do not answer.
WITHOUT = {
    "stop": "To stop the others without {them}: the same command with --limit '{without}'",
    "reset": "The others go on. When {them} can be reached again: the same command with --limit {them}",
}
# What is copied, and so stays on one line: a command up to a remark or the end of its sentence, an option with its
# value, a line of YAML.
_WORD = r"""(?:'[^']*'|"[^"]*"|[^\s'"])+"""
_PROGRAM = r"(?:uvx |pipx run )?(?:\S*/)?(?:curl|ssh|sudo|sparkmatrix|ansible-playbook)"
_COMMAND = rf"{_PROGRAM} (?:(?!\(){_WORD}(?<![;,.:]) )*(?!\(){_WORD}"
_VALUE = r"""(?:(?:[^\s'"]*=)?(?:'[^']*'|"[^"]*")|[^\s'"]+)"""  # of an option; a quote may end behind it
_OTHERS = rf"'{_PROGRAM} [^']+'|--?\w[\w-]*(?:[ =]{_VALUE})?|\w+: \{{[^{{}}]*\}}"
COPIED = re.compile(rf"(?<![^\s(])(?:{_COMMAND}|{_OTHERS})|\S*\$\(.*")
REMARK = re.compile(r"(?<=  )\(.*\)$")
LABEL = re.compile(r"(?=\S.{8,9}(?<= )(?=\S))\S(?: ?\S)* {2,}")  # of a line in columns: "changed   "
# Of playbooks that end without a summary.
NEXT = {
    "plan": "with this model in the inventory: ansible-playbook site.yml",
    "preflight": "ansible-playbook site.yml",
    "bootstrap": "ansible-playbook playbooks/preflight.yml",
}
POINT = re.compile(r"^ *\d+\. ", re.MULTILINE)  # of a refusal
MAX_HANDLED = 160  # signs of a failure that the run deals with itself


@dataclass(frozen=True)
class Line:
    """``fold``: :func:`folded` may break it."""

    text: str
    kind: str = ""
    fold: bool = False


@dataclass(frozen=True)
class Diff:
    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What a task did on one host, "" for all of them. ``text``: a message, or why it failed.

    ``handled``: the run goes on all the same.
    """

    host: str
    state: str
    text: str = ""
    what: tuple[str, ...] = ()
    diffs: tuple[Diff, ...] = ()
    warnings: tuple[str, ...] = ()
    handled: bool = False
    dump: str = ""  # the whole result, for those who ask


@dataclass
class _Step:
    name: str
    began: float
    results: list[Result] = field(default_factory=list)

    def of(self, state: str) -> list[Result]:
        return [result for result in self.results if result.state == state]


@dataclass
class Page:
    """``hosts``: of the play, in the order of the inventory. ``verbose``: name unchanged steps and cut nothing.
    ``by_verbs``: called by the command `sparkmatrix`, which takes a ``model`` as a word; ``goes_on``: it runs another
    playbook next."""

    check: bool = False
    verbose: bool = False
    playbook: str = ""
    by_verbs: bool = False
    goes_on: bool = False
    model: str = ""
    clock: Callable[[], float] = time.monotonic
    hosts: Sequence[str] = ()
    failed: bool = False
    changes: int = 0
    points: int = 0  # of refusals
    _play: str = ""
    _play_began: float = 0.0
    _shown: bool = False  # the heading of the play
    _steps: int = 0  # of the play, without a line of their own
    _step: _Step | None = None
    _began: float | None = None
    _said: set[str] = field(default_factory=set)

    def play(self, name: str, hosts: Sequence[str]) -> list[Line]:
        lines = self.finish_play()
        self._began = self.clock() if self._began is None else self._began
        self._play, self._play_began, self._shown, self._steps = name, self.clock(), False, 0
        self.hosts = hosts
        return lines

    def task(self, name: str) -> list[Line]:
        lines = self._finish_step()
        self._step = _Step(short(name), self.clock())
        return lines

    def result(self, result: Result) -> None:
        if self._step is not None:
            self._step.results.append(result)

    def waiting(self, news: str = "", width: int = sys.maxsize) -> str:
        """What runs now and for how long, for a line that moves; ``news``: what the node says of it, of which a narrow
        terminal shows the end, where the figures are."""
        if self._step is None:
            return ""
        took = span(self.clock() - self._step.began)
        text = f"{self._step.name}: {took}"
        if (done := len({result.host for result in self._step.results})) and len(self.hosts) > 1:
            text += f", {done} of {len(self.hosts)} nodes done"
        whole = f"{text}; {news}" if news else text
        if len(whole) <= width or not news:
            return whole[:width]
        left = max(0, width - len(took) - 2)
        return f"{took}; {news if len(news) <= left else f'... {news[len(news) + 4 - left :]}'}"[:width]

    @property
    def waited_s(self) -> float:
        return self.clock() - self._step.began if self._step else 0.0

    def still(self, news: str = "") -> list[Line]:
        """The same as a line of its own, for a log."""
        return self._in_play([Line(f"  waiting  {self.waiting(news)}", QUIET)])

    def finish_play(self) -> list[Line]:
        lines = self._finish_step()
        if self._steps and not self.failed:
            took = span(self.clock() - self._play_began)
            count = f"{self._steps} {'other ' if self._shown else ''}step{'' if self._steps == 1 else 's'}"
            if self._shown and self._steps >= FEW:
                lines.append(Line(f"  ok       {count}, nothing changed; {took} in all", QUIET, fold=True))
            elif not self._shown:
                lines.append(Line(f"{self._play}: {count}, nothing changed, {took}", HEADING, fold=True))
        self._steps = 0
        return lines

    def end(self, notes: Mapping[str, Any], failed: bool, log: str, early: bool = False) -> list[Line]:
        """``notes``: what is to be seen once more; ``failed``: also where no step said so; ``early``: cut off."""
        self.failed = self.failed or failed
        lines = self.finish_play()
        lines += [
            Line(f"Noted: {name.replace('_', ' ')}: {text}", WARNING, fold=True) for name, text in sorted(notes.items())
        ]
        took = span(self.clock() - (self.clock() if self._began is None else self._began))
        count = f"{self.changes} step{'' if self.changes == 1 else 's'}"
        if following := self._next(early):
            lines.append(Line(f"Next: {following}", fold=True))
        if self.failed:
            text, kind = f"{'ENDED EARLY' if early else 'FAILED'} after {took}", FAILED
        elif self.check:
            text, kind = f"Done in {took}; check mode: {count} would change something, nothing was changed", ""
        else:
            text, kind = (
                f"Done in {took}; {f'{count} changed something' if self.changes else 'nothing was changed'}",
                "",
            )
        lines.append(Line(f"{text}. Whole log: {log}" if log else f"{text}.", kind, fold=True))
        return lines

    def _to_read(self, text: str) -> str:
        """Nobody is told what to type next while the command goes on by itself."""
        return "\n".join(line for line in text.splitlines() if not (self.goes_on and line.startswith("Next: ")))

    def _next(self, early: bool) -> str:
        if not self.failed:
            if self.by_verbs:
                last = self.playbook in ("plan", "preflight") and not self.goes_on
                return f"ansible-playbook site.yml {self.model}".rstrip() if last else ""
            return "" if self.check else NEXT.get(self.playbook, "")
        if self.points:
            return f"mend {'this' if self.points == 1 else f'these {self.points} points'}, then the same command again"
        if early:
            return "the same command again; it goes on from there"
        return "the same command again, when the cause is mended; it goes on from there" if self.changes else ""

    def _finish_step(self) -> list[Line]:
        step, self._step = self._step, None
        if step is None or not any(result.state != SKIPPED for result in step.results):
            return []
        took = span(self.clock() - step.began)
        lines: list[Line] = []
        warned = grouped((w, result.host) for result in step.results for w in result.warnings)
        new = [text for text, hosts in warned if text not in self._said]
        self._said.update(new)
        for text in merged("\n".join(new), self.hosts).splitlines():
            lines.append(Line(f"  warning  {text}", WARNING, fold=True))
        changed = step.of(CHANGED)
        if changed:
            self.changes += 1
            names = list(dict.fromkeys(name for result in changed for name in result.what))
            what = f": {some(names)}" if names else ""
            word = "differs" if self.check else "changed"
            where = ", ".join([*filter(None, [span_of([r.host for r in changed], self.hosts)]), took])
            lines.append(Line(f"  {word:<8} {step.name}{what} ({where})", CHANGED, fold=True))
            lines += self._diffs(changed)
        told = [result for result in step.results if result.state in (OK, CHANGED) and result.text]
        for text, hosts in grouped((self._to_read(result.text), result.host) for result in told):
            lines += message(merged(text, self.hosts), self._named(hosts, text))
        if self.verbose and not changed and step.of(OK) and not told:
            where = ", ".join([*filter(None, [span_of([r.host for r in step.of(OK)], self.hosts)]), took])
            lines.append(Line(f"  ok       {step.name} ({where})", fold=True))
        lines += self._failures(step, took)
        for dump, hosts in grouped((result.dump, result.host) for result in step.results if result.dump):
            lines.append(Line(f"    {span_of(hosts, self.hosts) or 'this computer'}:", QUIET))
            lines += [Line(f"      {line}", QUIET) for line in dump.strip().splitlines()]
        if not lines:
            self._steps += 1
        return self._in_play(lines)

    def _failures(self, step: _Step, took: str) -> list[Line]:
        lines: list[Line] = []
        silent = step.of(UNREACHABLE)
        if gone := sorted((r for r in silent if not r.handled), key=lambda r: r.host):
            self.failed = True
            where = ", ".join([*filter(None, [span_of([r.host for r in gone], self.hosts)]), took])
            lines.append(Line(f"  FAILED   {step.name}: no answer ({where})", FAILED, fold=True))
            why = merged("\n".join(f"{r.host}: {shortened(r.text, MAX_REASON)}" for r in gone), self.hosts)
            lines += [Line(f"  {line}", fold=True) for line in why.splitlines()]
            lines.append(Line(f"  {ASK_PREFLIGHT}", fold=True))
            if self.playbook in WITHOUT and len(gone) < len(self.hosts):
                names = [r.host for r in gone]
                without = WITHOUT[self.playbook].format(them=",".join(names), without=":".join(f"!{n}" for n in names))
                lines.append(Line(f"  {without}", fold=True))
        if handled := [host for host in self.hosts if host in {r.host for r in silent if r.handled}]:
            who = span_of(handled, ())
            lines.append(Line(f"  no answer from {who} ({took}); the reasons come below", FAILED, fold=True))
        for text, hosts in grouped((r.text, r.host) for r in step.of(FAILED) if r.handled):
            first = shortened(text, MAX_HANDLED)
            where = ", ".join([*filter(None, [span_of(hosts, self.hosts)]), took])
            lines.append(Line(f"  failed   {step.name} ({where}), dealt with below: {first}", WARNING, fold=True))
        for text, hosts in grouped((r.text, r.host) for r in step.of(FAILED) if not r.handled):
            self.failed = True
            where = ", ".join([*filter(None, [span_of(hosts, self.hosts)]), took])
            lines.append(Line(f"  FAILED   {step.name} ({where})", FAILED, fold=True))
            # The same text of an earlier step: it is on the page already.
            known = text in self._said
            self._said.add(text)
            shown = "as above" if known else merged(text.rstrip(), self.hosts)
            self.points += len(POINT.findall(shown))
            lines += [Line(f"  {line}", fold=True) for line in shown.splitlines()]
        return lines

    def _diffs(self, changed: Sequence[Result]) -> list[Line]:
        """Each file once; a host whose diff is nearly that of another one shows what is other."""
        files: dict[str, dict[tuple[str, ...], list[str]]] = {}
        for result in changed:
            for diff in result.diffs:
                files.setdefault(diff.name, {}).setdefault(diff.lines, []).append(result.host)
        lines: list[Line] = []
        for name, versions in files.items():
            first: tuple[str, ...] = ()
            for text, hosts in versions.items():
                where = span_of(hosts, self.hosts)
                shown = text
                if first:
                    other = tuple(line for line in text if line[:1] in "+-" and line not in first)
                    if len(other) * 2 <= len(text):
                        where, shown = f"{where}, otherwise the same", other
                lines.append(Line(f"    {name}{f' ({where})' if where else ''}"))
                cut = len(shown) if self.verbose else MAX_DIFF
                lines += [Line(f"      {line}", diff_kind(line)) for line in shown[:cut]]
                if len(shown) > cut:
                    lines.append(Line(f"      ... {len(shown) - cut} more lines, in the log", QUIET))
                first = first or text
        return lines

    def _named(self, hosts: Sequence[str], text: str) -> str:
        """Hosts, where not all of them and the text does not say so itself."""
        if len(hosts) == len(self.hosts) or all(host in text for host in hosts):
            return ""
        return span_of(hosts, self.hosts)

    def _in_play(self, lines: list[Line]) -> list[Line]:
        if not lines or self._shown:
            return lines
        self._shown = True
        return [Line(self._play, HEADING), *lines]


def short(name: str) -> str:
    """A task's name without its role and topic (``role : topic | Do it``), and Ansible's own task in plain words."""
    own = re.sub(r"^(?:[\w.]+ : )?(?:[\w ./-]+ \| )?", "", name.strip())
    return re.sub(r"^Validating arguments against arg spec '[^']*'(?: - (.))?", r"Check settings: \1", own).rstrip(": ")


def span(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def span_of(hosts: Sequence[str], among: Sequence[str]) -> str:
    """``4 nodes`` where that is all of them, else names, numbered ones as ``spark1..spark3``; nothing for localhost."""
    known = [host for host in dict.fromkeys(hosts) if host not in ("", "localhost")]
    known.sort(key=lambda host: among.index(host) if host in among else len(among))
    if len(known) > 1 and set(known) == set(among) and len(known) == len(among):
        return f"{len(known)} nodes"
    return named(known)


def some(names: Sequence[str]) -> str:
    """As many names as fit, and how many more there are."""
    shown: list[str] = []
    for name in names:
        if shown and sum(map(len, shown)) + 2 * len(shown) + len(name) > MAX_WHAT:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(shortened(name, MAX_WHAT))
    return ", ".join(shown)


def shortened(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 4].rstrip()} ..."


def grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Equal texts once, with the hosts that say them."""
    found: dict[str, list[str]] = {}
    for text, host in pairs:
        hosts = found.setdefault(text, [])
        if host not in hosts:
            hosts.append(host)
    return list(found.items())


def merged(text: str, among: Sequence[str]) -> str:
    """Lines that say the same of several hosts once, such as those of a refusal: ``  1. spark1 eth0: what``."""
    told: list[tuple[str, tuple[str, ...], str]] = []
    for line in text.splitlines():
        item = ABOUT_HOST.match(line)
        if item and item["host"] in among:
            told.append((item["host"], (item["indent"], NUMBER.sub("1.", item["sign"]), item["device"]), item["what"]))
        else:
            told.append(("", (), line))
    found = alike(told)
    if len(found) == len(told):
        return text
    lines = []
    for hosts, beside, what in found:
        if beside:
            indent, sign, device = beside
            lines.append(f"{indent}{sign}{' ' if sign else ''}{named(hosts)}{device}: {what}")
        else:
            lines.append(what)
    numbers = itertools.count(1)
    return "\n".join(re.sub(r"^( +)\d+\. ", lambda at: f"{at[1]}{next(numbers)}. ", line) for line in lines)


def message(text: str, who: str = "") -> list[Line]:
    """What a task wants to say, as it is."""
    lines = text.rstrip().splitlines()
    if not who:
        return [Line(f"  {line}".rstrip(), fold=True) for line in lines]
    if len(lines) == 1:
        return [Line(f"  {who}: {lines[0]}", fold=True)]
    return [Line(f"  {who}:"), *(Line(f"    {line}".rstrip(), fold=True) for line in lines)]


def asked(extra: Iterable[str]) -> str:
    """The model of a plan, and what a start needs as the plan had it: consent, a context. ``extra``: as typed."""
    given = {name: text for name, is_one, text in (word.partition("=") for word in extra) if is_one}
    kept = [
        f"-e {shlex.quote(f'{name}={text}')}"
        for name, text in given.items()
        if name.startswith("engine_") and name not in {"engine_recipe", "engine_plan_details"}
    ]
    return " ".join([*filter(None, [given.get("engine_recipe")]), *kept])


def folded(text: str, width: int) -> list[str]:
    """A line for a terminal, which nobody else breaks: between words, a row of a table between its cells, and no
    command that is copied. What follows stands under the text of a point or a label."""
    if len(text) <= width:
        return [text]
    indent = len(text) - len(text.lstrip())
    own = text[indent:]
    label = found[0] if (found := LABEL.match(own)) else ""
    rest = own[len(label) :]
    if re.search(r"\S {2,}[^\s(]", rest):
        whole, hang = re.sub(r"(?<! ) (?! )", "\0", rest), 4
    else:
        point = own.split(" ", 1)[0]
        hang = len(point) + 1 if point.rstrip(".").isdigit() or point == "-" else 2
        most = width - indent - (len(label) or hang)
        whole = COPIED.sub(lambda at: at[0].replace(" ", "\0"), rest)
        whole = REMARK.sub(lambda at: at[0].replace(" ", "\0") if len(at[0]) <= most else at[0], whole)
    rows = textwrap.wrap(
        f"{label.replace(' ', chr(0))}{whole}",
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + (len(label) or hang)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row.replace("\0", " ") for row in rows] or [text]


def behind(start: str, text: str, width: int) -> str:
    """Of a text that somebody prints behind ``start``."""
    lines = f"{start}{text}".splitlines()
    return "\n".join(row for line in lines for row in folded(line, width)).removeprefix(start)


def diff_kind(line: str) -> str:
    return {"+": ADDED, "-": REMOVED, "@": QUIET}.get(line[:1], "")


def diffs(entries: Any, context: int) -> tuple[Diff, ...]:
    """What a module returns as ``diff``, one entry or a list of them."""
    found: list[Diff] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, Mapping):
            continue
        name = str(entry.get("after_header") or entry.get("before_header") or "")
        lines: list[str] = []
        if any(entry.get(key) for key in ("src_binary", "dst_binary", "src_larger", "dst_larger")):
            lines.append("(binary or too large to be shown)")
        if "before" in entry and "after" in entry:
            before, after = (_diffable(entry[key]).splitlines() for key in ("before", "after"))
            # The first two lines name the files, which the heading does.
            lines += list(difflib.unified_diff(before, after, lineterm="", n=context))[2:]
        lines += str(entry.get("prepared") or "").splitlines()
        if lines:
            found.append(Diff(name, tuple(lines)))
    return tuple(found)


def _diffable(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, default=str)


def spoken(value: Any) -> str:
    """A message as lines: a text, a list of lines, or anything."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return "\n".join(map(spoken, value))
    return json.dumps(value, indent=2, default=str, ensure_ascii=False)


def reason(result: Mapping[str, Any]) -> str:
    """Why a task failed: what it says, of a loop what its items say, and what a command has printed."""
    items = [item for item in result.get("results") or () if isinstance(item, Mapping) and item.get("failed")]
    if items:
        labels = [str(item.get("_ansible_item_label", item.get("item", ""))) for item in items]
        texts = [(reason(item), label) for item, label in zip(items, labels)]
        # Equal ones of several items once; a single item has no need of its label.
        return "\n".join(
            text if len(items) == 1 or len(said) == len(items) else f"{', '.join(said)}: {text}"
            for text, said in grouped(texts)
        )
    if result.get("censored"):
        return f"Not shown: {result['censored']}"
    text = spoken(result.get("msg") or result.get("reason") or "It gave no reason.")
    text = re.sub(r"^((Task|Action|Module) failed: )+", "", text)
    printed = next(
        (str(result[key]) for key in ("stderr", "module_stderr", "stdout", "module_stdout") if result.get(key)), ""
    )
    more = [line for line in printed.strip().splitlines() if line.strip()]
    # A traceback's last line says what it was; all of it is in the log.
    if more and more[0].startswith("Traceback"):
        more = more[-1:]
    return "\n".join([text, *(f"  {line}" for line in more[-MAX_OUTPUT:] if line.strip() not in text)])


def changed_things(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of what a result has changed, where it says so."""
    items = [item for item in result.get("results") or () if isinstance(item, Mapping) and item.get("changed")]
    if items:
        labels = [str(item.get("_ansible_item_label") or "") for item in items]
        found = [name for item in items for name in changed_things(item)]
        return tuple(dict.fromkeys(filter(None, found or labels)))
    if isinstance(paths := result.get("changed_paths"), list):
        return tuple(map(str, paths))
    named = [spoken(value) for key in ("path", "dest") if isinstance(value := result.get(key), str)]
    action = result.get("action")
    if not named and isinstance(action, str) and action not in ("", "none"):
        named = [action]
    return tuple(named[:1])
