# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run a module's ``main()`` in this process, with the arguments and output of a real run.

result, failed = run_module(show_gids, {"device": ["rocep1s0f0"]}, check=True)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from ansible.module_utils.common import warnings
from ansible.module_utils.testing import patch_module_args  # ansible-core 2.19 and newer
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.modules import node


def run_module(
    module: ModuleType, args: Mapping[str, Any] | None = None, check: bool = False, diff: bool = False
) -> tuple[dict[str, Any], bool]:
    """Returns (result, failed). ``main()`` must end in exit_json or fail_json; anything else is a test failure."""
    arguments = {**(args or {}), "_ansible_check_mode": check, "_ansible_diff": diff}
    output = io.StringIO()
    # A real run is a process of its own: without this, warnings of one test are in the results of the next.
    warnings._global_warnings.clear()
    warnings._global_deprecations.clear()
    with patch_module_args(arguments), contextlib.redirect_stdout(output), pytest.raises(SystemExit) as ended:
        module.main()
    result = json.loads(output.getvalue().strip().splitlines()[-1])
    failed = bool(result.get("failed"))
    assert failed == (ended.value.code != 0), (ended.value.code, result)
    return result, failed


def run_call(name: str, request: Mapping[str, Any], *, check: bool = False) -> tuple[dict[str, Any], bool]:
    """A call of the module ``node``."""
    return run_module(node, {"call": name, "request": dict(request)}, check=check)


def arguments(program: ModuleType, *words: str) -> argparse.Namespace:
    """As a subcommand of the node's program reads them."""
    parser = argparse.ArgumentParser()
    program.configure(parser)
    return parser.parse_args(words)


def run_program(program: ModuleType, *words: str) -> int:
    return int(program.run(arguments(program, *words)))


def action(module: ModuleType, args: Mapping[str, Any], *, check: bool = False) -> Any:
    """The action of a task with these arguments; its connection and play are of no kind."""
    task = Task()
    task.args, task.check_mode = dict(args), check
    loader, anything = DataLoader(), mock.MagicMock
    return module.ActionModule(task, anything(), anything(), loader, Templar(loader), anything())
