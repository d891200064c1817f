# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix ask``: on the head, one question to a model; the answer is shown as it comes."""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import shlex
import signal
import sys
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Offer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Answer, ProbeError, Question
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import endpoint, every_node, word_colours

HELP = "ask the model a question, and show the answer as it comes"
ROOT = "This needs root, for the key: sudo sparkmatrix ask"
STATUS = "How it is: sudo sparkmatrix status"
NOTE = "thinking …"
ANSWER_S = 3600.0  # a model that thinks takes its time; the keeper ends an engine that computes nothing
INTERRUPTED = 130
OTHERS = {"embed": "embeddings, which are numbers for a search", "rank": "ranking texts by a question"}
# Statuses of an engine that understood and refused.
_REFUSED = range(http.client.BAD_REQUEST, http.client.INTERNAL_SERVER_ERROR)


@dataclass
class Shown:
    """The answer, as far as it has come."""

    begun: bool = False
    note: bool = False
    last: str = ""

    def __call__(self, piece: str) -> None:
        text = strict.harmless(piece.replace("\r", ""))
        text = text if self.begun else text.lstrip("\n")  # behind its thoughts
        if text:
            self.rub_out()
            self.begun, self.last = True, text[-1]
            sys.stdout.write(text)
            sys.stdout.flush()
        elif not self.begun and not self.note and sys.stderr.isatty():
            self.note = True
            sys.stderr.write(NOTE)
            sys.stderr.flush()

    def rub_out(self) -> None:
        if self.note:
            sys.stderr.write(f"\r{' ' * len(NOTE)}\r")
            sys.stderr.flush()
            self.note = False

    def end(self) -> None:
        self.rub_out()
        if self.begun and self.last != "\n":
            sys.stdout.write("\n")
        sys.stdout.flush()


def wanted(words: list[str]) -> str:
    """The question; from standard input where the command line has none."""
    if words:
        return " ".join(words)
    if sys.stdin.isatty():
        sys.stderr.write("Your question, then Ctrl-D:\n")
    text = sys.stdin.buffer.read(probe.MAX_BODY + 1)
    if len(text) > probe.MAX_BODY:
        raise SparkError(f"the question is longer than {probe.MAX_BODY} bytes")
    return text.decode("utf-8", "replace").strip()


def other_use(offer: Offer) -> str:
    """Of a model that answers no questions: what it is for, and how it is asked for that."""
    if offer.task not in OTHERS:
        return ""
    path = api_paths.PROBED[offer.task].removeprefix("/v1")
    body = shlex.quote(json.dumps({"model": offer.model, **probe.EXAMPLES[offer.task]}))
    return (
        f"{offer.model} is for {OTHERS[offer.task]}; it answers no questions. Ask it so:\n"
        f'  eval "$(sudo sparkmatrix env --model {shlex.quote(offer.model)})"\n'
        f'  curl "$OPENAI_BASE_URL{path}" -H "Authorization: Bearer $OPENAI_API_KEY"'
        f" -H 'Content-Type: application/json' -d {body}\n"
    )


def answered(offer: Offer, prompt: str, shown: Shown) -> Answer:
    """Raises :class:`SparkError` with why there is no answer, or no whole one, and what to do."""
    try:
        target = probe.target_of(offer)
        answer = probe.ask(target, Question(prompt, 0, ANSWER_S), hear=shown)
    except ProbeError as exc:
        if exc.status in _REFUSED:
            known = exc.status in (http.client.UNAUTHORIZED, http.client.NOT_FOUND)
            remedy = (
                probe.refused(exc.status, Names(offer.name).unit)
                if known
                else "Ask it something else, or something shorter"
            )
            raise SparkError(exc.found, exc.where, remedy) from exc
        if offer.name in keeper_status.kept() and exc.kind != "stranger":
            keeper_status.check(offer.name)  # it knows more: it loads, it was stopped
        raise SparkError(
            f"there is no {'whole ' if shown.begun else ''}answer: {exc.found}", exc.where, STATUS
        ) from exc
    if not shown.begun:
        raise SparkError(f"the model thought, and then said nothing ({answer.measured})", remedy="Ask it again")
    return answer


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", nargs="*", metavar="QUESTION", help="without one it is read from standard input")
    endpoint.choose(parser)


def run(arguments: argparse.Namespace, root: str = "/") -> int:
    shown = Shown()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal need not know all that a model can say
    try:
        return _asked(arguments, shown, root)
    except SparkError as exc:
        shown.end()
        sys.stderr.write(f"{exc}\n")
        return 1
    except (BrokenPipeError, KeyboardInterrupt) as exc:
        try:
            shown.end()
        except BrokenPipeError:  # nor is it told at the end that nobody reads
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED if isinstance(exc, KeyboardInterrupt) else 0


def _asked(arguments: argparse.Namespace, shown: Shown, root: str) -> int:
    if os.geteuid() != 0:
        raise SparkError(ROOT)
    offer = endpoint.pick(endpoint.services(root), arguments.model)
    other = other_use(offer)
    if other:
        sys.stderr.write(other)
        return 1
    prompt = wanted(arguments.question)
    if not prompt:
        sys.stderr.write('There is no question. Ask one: sudo sparkmatrix ask "What are you good at?"\n')
        return 2
    # Nobody computes on for somebody who has gone.
    every_node.when_nobody_listens(lambda: os.kill(os.getpid(), signal.SIGINT))
    answer = answered(offer, prompt, shown)
    shown.end()
    cut = "; cut off: no answer of it is longer" if answer.finish_reason == "length" else ""
    line = f"-- {offer.model}: {answer.measured}{cut}"
    sys.stderr.write(f"\x1b[2m{line}\x1b[0m\n" if word_colours.coloured(terminal=sys.stderr.isatty()) else f"{line}\n")
    return 0
