# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a playbook: print the line, hand passwords over, and wait for the end, whatever the keyboard says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import run_document, verbs

from sparkmatrix import ROOT, short

DONE, REFUSED, SILENT, INTERRUPTED = 0, 1, 4, 130  # exit codes of this command
CODES = {0: DONE, 4: SILENT, 99: INTERRUPTED}  # of ansible-playbook


class Passwords(NamedTuple):
    """Empty: Ansible is given none."""

    login: str = ""
    sudo: str = ""


def play(
    name: str,
    place: Path | None,
    options: Sequence[str] = (),
    passwords: Passwords | None = None,
    *,
    called: str = "",
    as_json: bool = False,
) -> int:
    """Passwords go through pipes with names, which Ansible wants: they are in no file, argv or variable."""
    words = [f"sparkmatrix.cluster.{name}", *(("-i", str(place)) if place else ()), *options]
    asked = [option for option, word in zip(("--ask-pass", "--ask-become-pass"), passwords or ()) if word]
    click.secho(f"$ ansible-playbook {short(shlex.join([*words, *asked]))}", fg="bright_black", err=True)
    own = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), verbs.CALLED_BY: called}
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-") as folder:
        for option, word in zip(("--connection-password-file", "--become-password-file"), passwords or ()):
            if word:
                pipe = Path(folder, option.strip("-"))
                os.mkfifo(pipe, 0o600)
                threading.Thread(target=pipe.write_text, args=(word,), daemon=True).start()
                words += [option, str(pipe)]
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("ansible-playbook")), *words],
            env={**os.environ, **own, **({"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"} if as_json else {})},
            stdout=subprocess.PIPE if as_json else None,
            text=True,
        )
        said = ""
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
