# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which inventory is meant, and the choice that is kept in it."""

from __future__ import annotations

import difflib
import os
import tempfile
from pathlib import Path

import click
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import chosen_model

PLACE = Path("~/sparkmatrix").expanduser()
USUAL, UNFINISHED = "mine", ".unfinished"


def place(given: str | None) -> Path:
    """Where the inventory of this name is, or would be. Without one: the only one that there is."""
    known = sorted(path.name for path in PLACE.glob("*/") if path.suffix != UNFINISHED)
    if not given and len(known) > 1:
        raise click.UsageError(f"You have several clusters; name one: -i {', -i '.join(known)}")
    if not given or (os.sep not in given and not Path(given).exists()) or given in known:
        return PLACE / (given or next(iter(known), USUAL))
    return Path(given).expanduser()


def short(text: str) -> str:
    return text.replace(f"{Path.home()}{os.sep}", f"~{os.sep}")


def keep(choice: chosen_model.Choice, model: str) -> None:
    """Write the model into its line, and show that. The file is whole at any moment, with the rights that it had."""
    new = choice.instead(model)
    if new == choice.text:
        return
    if choice.path.read_text(encoding="utf-8") != choice.text:
        raise click.ClickException(
            f"{choice.path} was changed meanwhile. Write there: {chosen_model.VARIABLE}: {model}"
        )
    real = choice.path.resolve()
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
        stream.write(new)
    os.chmod(name, real.stat().st_mode & 0o777)
    os.replace(name, real)
    click.echo(f"{short(str(choice.path))}:")
    for line in list(difflib.unified_diff(choice.text.splitlines(), new.splitlines(), lineterm="", n=0))[3:]:
        click.secho(f"  {line}", fg="green" if line[0] == "+" else "red")
