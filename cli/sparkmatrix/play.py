# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run a playbook: print the line, hand passwords over, and wait for the end, whatever the keyboard says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import named_pipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import log, run_document

DONE, REFUSED, SILENT, INTERRUPTED = 0, 1, 4, 130  # exit codes of this command
CODES = {0: DONE, 4: SILENT, 99: INTERRUPTED}  # of ansible-playbook
# Python's helpers are not imported from the current folder: with a password Ansible starts one with `python -c`.
OURS = {"PYTHONSAFEPATH": "1"}
CHECKED = ("ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_SSH_HOST_KEY_CHECKING")  # where a password goes out


def play(
    name: str,
    place: Path | None,
    options: Sequence[str] = (),
    passwords: tuple[str, str] = ("", ""),
    as_json: bool = False,
) -> int:
    """Exit code. ``passwords``: of login and sudo, where they are needed; they are in no file, argv or variable."""
    words = [f"sparkmatrix.cluster.{name}", *(("-i", str(place)) if place else ()), *options]
    asked = [option for option, word in zip(("--ask-pass", "--ask-become-pass"), passwords) if word]
    click.secho(f"$ ansible-playbook {log.from_home(shlex.join([*words, *asked]))}", dim=True, err=True)
    callback = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"} if as_json else {}
    environment = {**os.environ, **OURS, **callback, **dict.fromkeys(CHECKED if asked else (), "true")}
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-") as folder:
        for option, word in zip(("--connection-password-file", "--become-password-file"), passwords):
            if word:
                named_pipe.hand_over(pipe := Path(folder, option.strip("-")), word)
                words += [option, str(pipe)]
        words = [str(Path(sys.executable).with_name("ansible-playbook")), *words]
        output, said = subprocess.PIPE if as_json else None, ""
        process = subprocess.Popen(words, env=environment, stdout=output, text=True)
        while process.returncode is None:
            try:
                said += process.stdout.read() if process.stdout else ""
                process.wait()
            except KeyboardInterrupt:
                continue  # Ansible has got it as well, and ends what it does
    code = CODES.get(process.returncode, REFUSED if 0 < process.returncode < 128 else INTERRUPTED)
    if as_json:
        click.echo(json.dumps(run_document.document(name, code, said), indent=1))
    return code
