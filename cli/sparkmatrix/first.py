# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The first time: which machines, who logs in, and with which password. At most three questions."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import discover, own_key
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs

from sparkmatrix import UNFINISHED
from sparkmatrix.play import DONE, SILENT, play


def inventory(place: Path, where: str) -> tuple[int, str]:
    """Exit code, and the password that was typed. Cut off, it leaves no inventory, and the same line begins again."""
    if made := own_key.ensure():
        click.echo(made, err=True)
    machines, known = choose(where.strip())
    keys = ",".join(machine.fingerprint for machine in machines if machine.fingerprint)
    user = click.prompt("Login name on them", default=getpass.getuser(), err=True)
    password = ""
    with ThreadPoolExecutor() as pool:
        if not all(pool.map(lambda one: discover.opens(user, one, known), machines)):
            password = click.prompt(f"Password of {user} there, for login and sudo", hide_input=True, err=True)
    unfinished = place.with_name(f"{place.name}{UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    places = " ".join(
        place for machine in machines for place in (machine.address, *machine.others)
    )  # its own routes say which
    found = {"addresses": places, "fingerprints": keys, "inventory": str(unfinished)}
    words = json.dumps({f"discover_{name}": value for name, value in found.items()})
    more, both = ("--tags=keys", "-e", f"node_fingerprint={keys}"), (password, password)
    code = play("discover", None, ("-u", user, "-e", words), both) or play("bootstrap", unfinished, more, both)
    if code == DONE:
        os.replace(unfinished, place)
    return code, password


def choose(where: str) -> tuple[Sequence[discover.Machine], Sequence[discover.Candidate]]:
    """What was named, or what is found and called like a Spark; else the user says. And all that was found."""
    click.echo(f"Looking for machines {'at ' if where else ''}{where or 'on your network'} …", err=True)
    found = discover.find(where)
    chosen = [machine for machine in discover.machines(found) if machine.likely or (where and "/" not in where)]
    if others := [
        f"{machine.name} {machine.address}".strip() for machine in discover.machines(found) if machine not in chosen
    ]:
        click.echo(f"Left out, not named like a Spark: {', '.join(others)}", err=True)
    if not chosen:
        named = click.prompt(f"{discover.nobody(found)} Addresses of yours, blanks between", err=True)
        found = discover.find(named)
        chosen = discover.machines(found)
    if silent := [machine.address for machine in chosen if not (machine.fingerprint or machine.own)]:
        click.echo(f"{', '.join(silent)}: {discover.SILENT}", err=True)
        raise click.exceptions.Exit(SILENT)
    click.echo(f"{len(chosen)} machine(s), and the host key of each:", err=True)
    for machine in chosen:
        places = ", ".join((machine.address, *machine.others))
        click.echo(
            f"  {machine.name or machine.address:<20} {places}\n    {machine.fingerprint or 'this computer'}", err=True
        )
    click.echo("The same on a machine's own screen:\n  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub", err=True)
    click.echo(f"Other ones: Ctrl-C, then: {os.environ[verbs.CALLED_BY]} up --on ADDRESS,ADDRESS", err=True)
    return chosen, found
