# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: page
type: stdout
short_description: A run as a page, and all of it in a log file
version_added: 0.1.0
description:
  - One line per step that changed something or failed, with the nodes and the seconds. Messages and refusals are text,
    printed once, and so are equal diffs of several nodes. What changed nothing is counted, what was skipped left out.
  - A step that takes long shows for how long, and what the node says of it. On a terminal this line moves; elsewhere a
    line is added every half a minute.
  - All that Ansible prints with C(-v) goes to a file that the last line of the run names. Only its owner can read it.
    Results of tasks with C(no_log) are in neither.
  - With C(-v) unchanged steps are named, diffs are not cut and results of what changed are shown, with C(-vv) all of
    them. With C(-vvv) the screen is that of C(ansible.builtin.default).
notes:
  - C(ansible.cfg) of the project sets it. Ansible's own output is one setting away, C(ANSIBLE_STDOUT_CALLBACK=default).
  - AWX and Automation Controller set a callback of their own, which goes before C(ansible.cfg).
options:
  log_folder:
    description:
      - Folder of the log files. Without it C(sparkmatrix/logs) in C($XDG_STATE_HOME), usually C(~/.local/state).
      - V(none) writes no log.
    type: str
    default: ""
    env:
      - name: SPARKMATRIX_LOG_FOLDER
    ini:
      - section: callback_page
        key: log_folder
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout in configuration
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

import atexit
import copy
import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from ansible import constants as C  # noqa: N812
from ansible import context
from ansible.playbook.block import Block
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase
from ansible.plugins.callback.default import CallbackModule as DefaultCallback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import progress, workers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import colours, commands, log, page, verbs

DEBUG = ("debug", "ansible.builtin.debug", "ansible.legacy.debug")
PAUSE = ("pause", "ansible.builtin.pause", "ansible.legacy.pause")
# About a folder of its own on a machine, in the log only.
OF_ANSIBLE = re.compile(r"Module remote_tmp \S+ did not exist")
STATS = "sparkmatrix"  # the summary for programs, which has been shown
LINE_EVERY_S = 30  # where no line can move
MOVING = 12  # signs before a line that moves, and one behind it
ALL_OF_ANSIBLE = 3  # -vvv


class _File:
    """What the default callback needs of a display, written to a file."""

    def __init__(self, stream: TextIO, verbosity: int) -> None:
        self._stream = stream
        self.verbosity = max(verbosity, 1)

    def display(self, msg: str, *_args: Any, screen_only: bool = False, **_options: Any) -> None:
        # The recap comes in two versions; the other one is without colours.
        if not (screen_only and msg):
            self._stream.write(log.plain(msg) + "\n")

    def banner(self, msg: str, *_args: Any, **_options: Any) -> None:
        self._stream.write(f"\n{time.strftime('%H:%M:%S')} {msg}\n")


class _Log(DefaultCallback):
    """Ansible's own output, in a file."""

    def _handle_warnings(self, res: Any) -> None:
        for name in ("warnings", "deprecations"):
            for text in res.pop(name, None) or ():
                self._display.display(f"[{name[:-1].upper()}]: {text}")

    def _handle_exception(self, result: Any, use_stderr: bool = False) -> None:
        text = str(result.pop("exception", None) or "")
        if "\n" in text:  # else there is nothing that the message does not say
            self._display.display(f"[ERROR]: {text}")


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "sparkmatrix.cluster.page"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._page = page.Page()
        self._commands = commands.Commands()
        self._sinks: list[DefaultCallback] = []  # that print as Ansible does
        self._log_name = ""
        self._stream: TextIO | None = None
        self._plain = self._display.verbosity >= ALL_OF_ANSIBLE
        self._moves = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._lock = threading.Lock()
        self._quit = threading.Event()
        self._ticker: threading.Thread | None = None
        self._ticked = False  # a line that moves is on the terminal
        self._ticks = False  # a task runs
        self._news = ""
        self._last_line = 0.0
        self._ended = False
        self._names: dict[str, str] = {}  # of tasks, with their templates filled in

    # What comes in.

    def v2_playbook_on_start(self, playbook: Any) -> None:
        workers.prepare()
        # Of each playbook, where several are named.
        name = Path(str(playbook._file_name)).stem
        given = context.CLIARGS.get("inventory") or ()
        self._commands = commands.typed(given, ask_sudo=bool(context.CLIARGS.get("become_ask_pass")))
        check, verbose = bool(context.CLIARGS.get("check")), self._display.verbosity > 0
        model = page.asked(map(str, context.CLIARGS.get("extra_vars") or ()))
        goes_on = verbs.GOES_ON in os.environ
        self._page = page.Page(check, verbose, name, self._commands.by_verbs, goes_on, model)
        self._sinks, self._log_name, self._ended, self._quit = [], "", False, threading.Event()
        self._open_log(str(playbook._file_name))
        if self._plain:
            self._sinks.append(self._sink(DefaultCallback(), None))
        else:
            progress.screen.open()
            self._ticker = threading.Thread(target=self._tick, args=(self._quit,), daemon=True)
            self._ticker.start()
        atexit.register(self._leave, os.getpid())
        self._forward("v2_playbook_on_start", playbook)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        workers.share()
        with self._lock:
            self._ticks = False
            self._print(self._page.play(play.get_name().strip(), self._hosts(play)))
        self._forward("v2_playbook_on_play_start", play)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._task(task)
        self._forward("v2_playbook_on_task_start", task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self._task(task)
        self._forward("v2_playbook_on_handler_task_start", task)

    def v2_runner_on_ok(self, result: Any) -> None:
        if not isinstance(result.task, TaskInclude):
            self._result(result, page.CHANGED if result.result.get("changed") else page.OK)
        self._forward("v2_runner_on_ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result(result, page.FAILED, handled=bool(ignore_errors) or rescued(result.task))
        self._forward("v2_runner_on_failed", result, ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        handled = bool(result.task.ignore_unreachable) or rescued(result.task)
        self._result(result, page.UNREACHABLE, handled=handled)
        self._forward("v2_runner_on_unreachable", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result(result, page.SKIPPED)
        self._forward("v2_runner_on_skipped", result)

    def v2_runner_retry(self, result: Any) -> None:
        left = result.result.get("retries", 0) - result.result.get("attempts", 0)
        with self._lock:
            self._news = f"{result.host.get_name()} is asked again, {left} times at most"
        self._forward("v2_runner_retry", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._forward("v2_playbook_on_stats", stats)
        failed = bool(stats.failures or stats.dark)
        with self._lock:
            self._ended = True
            self._ticks = False
            notes = {name: text for name, text in (stats.custom.get("_run") or {}).items() if name != STATS}
            self._print(self._page.end(notes, failed, self._log_name), force=True)
        self._quit.set()

    # What only the whole log has.

    def v2_playbook_on_include(self, included_file: Any) -> None:
        self._forward("v2_playbook_on_include", included_file)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._forward("v2_playbook_on_no_hosts_matched")

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        self._forward("v2_playbook_on_no_hosts_remaining")

    def v2_on_file_diff(self, result: Any) -> None:
        self._forward("v2_on_file_diff", result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._forward("v2_runner_item_on_ok", result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._forward("v2_runner_item_on_failed", result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        self._forward("v2_runner_item_on_skipped", result)

    def _forward(self, event: str, *arguments: Any) -> None:
        for sink in self._sinks:
            sink._current_task_result = self._current_task_result
            if self._current_task_result is not None:
                # The default callback takes out of a result what it has shown.
                arguments = (clone(arguments[0]), *arguments[1:])
            getattr(sink, event)(*arguments)

    def _sink(self, sink: DefaultCallback, display: Any) -> DefaultCallback:
        whole = {"display_skipped_hosts": True, "display_ok_hosts": True} if display else {}
        sink._plugin_options = {**self._plugin_options, **whole}
        if display:
            sink._display = display
        return sink

    # What goes out.

    def _open_log(self, playbook: str) -> None:
        wanted = str(self.get_option("log_folder") or "")
        if wanted == "none":
            return
        folder = Path(wanted).expanduser().absolute() if wanted else log.default_folder()
        try:
            self._stream = log.create(folder, playbook)
        except (OSError, RuntimeError) as exc:
            self._display.warning(f"No log is written: {exc}. Name another folder: SPARKMATRIX_LOG_FOLDER")
            return
        self._log_name = log.from_home(str(self._stream.name))
        self._sinks.append(self._sink(_Log(), _File(self._stream, self._display.verbosity)))

    def _hosts(self, play: Any) -> list[str]:
        """Of the play, in the order of the inventory."""
        manager = play.get_variable_manager()
        return [str(host) for host in manager._inventory.get_hosts(play.hosts)] if manager else []

    def _task(self, task: Any) -> None:
        with self._lock:
            self._print(self._page.task(task.get_name()))
            self._news = ""
            self._last_line = 0.0
            self._ticks = task.action not in PAUSE

    def _result(self, result: Any, state: str, handled: bool = False) -> None:
        found = result.result
        # What runs once speaks for all.
        host = "" if result.task.run_once else result.host.get_name()
        text = ""
        if state in (page.FAILED, page.UNREACHABLE):
            text = page.reason(found)
        elif result.task.action in DEBUG and state != page.SKIPPED:
            items = found.get("results")
            text = "\n".join(map(_said, items)) if isinstance(items, list) else _said(found)
        entries: list[Any] = []
        if state == page.CHANGED:
            for part in found.get("results") or [found]:
                if isinstance(part, dict) and part.get("changed") and part.get("diff"):
                    entries += part["diff"] if isinstance(part["diff"], list) else [part["diff"]]
        diffs = page.diffs(entries, C.DIFF_CONTEXT)
        shown = self._display.verbosity >= (1 if state in (page.CHANGED, page.FAILED) else 2)
        dump = self._dump_results(found) if shown and state != page.SKIPPED and not text else ""
        warned = [text for text in map(str, found.get("warnings") or ()) if not OF_ANSIBLE.match(text)]
        with self._lock:
            self._page.result(
                page.Result(
                    host=host,
                    state=state,
                    text=text,
                    what=page.changed_things(found) or tuple(diff.name for diff in diffs if diff.name),
                    diffs=diffs if result.task.diff else (),
                    warnings=tuple(warned),
                    handled=handled,
                    dump=dump,
                )
            )

    def _print(self, lines: list[page.Line], force: bool = False) -> None:
        if not lines or (self._plain and not force):
            return
        self._wipe()
        width = shutil.get_terminal_size().columns if self._moves else sys.maxsize
        for line in lines[-1:] if self._plain else lines:
            said = line.text if line.kind in (page.ADDED, page.REMOVED) else self._commands.whole(line.text)
            for text in page.folded(strict.harmless(said), width if line.fold else sys.maxsize):
                self._display.display(text, color=colours.COLOURS.get(line.kind))
        sys.stdout.flush()

    def _wipe(self) -> None:
        if self._ticked:
            os.write(1, b"\r\x1b[K")
            self._ticked = False

    def _tick(self, ended: threading.Event) -> None:
        """A thread of its own. It writes a line that moves without Python's buffers, which a fork would copy."""
        while not ended.wait(1.0):
            with self._lock:
                if not self._ticks:
                    continue
                self._news = progress.screen.news() or self._news
                if self._moves:
                    columns = shutil.get_terminal_size().columns
                    text = strict.harmless(f"  ...      {self._page.waiting(self._news, columns - MOVING)}")[
                        : columns - 1
                    ]
                    os.write(1, f"\r{text}\x1b[K\r".encode(errors="replace"))
                    self._ticked = True
                elif self._page.waited_s - self._last_line >= LINE_EVERY_S:
                    self._last_line = self._page.waited_s
                    self._print(self._page.still(self._news))

    def _leave(self, pid: int) -> None:
        """A run that is cut off: what the last step said, and where the log is."""
        if os.getpid() != pid:
            return
        self._quit.set()
        if not self._ended:
            with self._lock:
                self._print(self._page.end({}, True, self._log_name, early=True), force=True)
        if self._ticker:
            self._ticker.join(2.0)


def rescued(task: Any) -> bool:
    """Whether the failure of a task goes to a ``rescue``, which says what becomes of it."""
    child, parent = task, task._parent
    while parent is not None:
        if isinstance(parent, Block) and parent.rescue and any(one._uuid == child._uuid for one in parent.block):
            return True
        child, parent = parent, parent._parent
    return False


def clone(result: Any) -> Any:
    other = copy.copy(result)
    other.__dict__["result"] = copy.deepcopy(result.result)
    return other


def _said(found: Any) -> str:
    """What a debug task prints: its message, or a variable with its name."""
    if not isinstance(found, dict) or found.get("skipped"):
        return ""
    if "msg" in found:
        return page.spoken(found["msg"])
    known = {key: value for key, value in found.items() if not key.startswith("_") and key not in HIDDEN}
    return "\n".join(f"{key}: {page.spoken(value)}" for key, value in known.items())


HIDDEN = ("changed", "failed", "skipped", "invocation", "item", "ansible_loop_var", "warnings")
