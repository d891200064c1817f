#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: support_archive
short_description: Write what all machines have printed into one archive on the controller
version_added: 0.2.0
description:
  - "Internal to this collection: no compatibility promise."
  - Takes what the call C(support) of M(sparkmatrix.cluster.node) has answered on every host of the play, and contacts
    no host.
options:
  seen:
    description: Name of the variable.
    type: str
    required: true
  file:
    description: The archive, on the controller.
    type: path
    required: true
  write:
    description: Write it. Otherwise only say what would be in it.
    type: bool
    default: true
  logs:
    description: Also logs of the last runs from this controller.
    type: bool
    default: false
  anonymous:
    description: Name machines by what stands for them.
    type: bool
    default: false
  names:
    description: Names of machines, and what stands for each.
    type: dict
    default: {}
  key:
    description: What stands for an address is made from it.
    type: str
    default: ""
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each run writes what the machines printed then.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Say what would be in the archive
  sparkmatrix.cluster.support_archive:
    seen: outputs # the variable that every host has registered
    file: /home/me/sparkmatrix-support.tar.gz
    write: false
  run_once: true
"""

RETURN = r"""
lines:
  description: The list of contents, and what was left out.
  returned: success
  type: list
  elements: str
  sample: ["spark1: 61 files, 812 kB"]
verdict:
  description: What was written, and of how many machines.
  returned: success
  type: str
  sample: "/home/me/sparkmatrix-support.tar.gz: 96 kB, 2 of 2 machines. Read it before you send it"
silent:
  description: Machines of which there is nothing.
  returned: success
  type: list
  elements: str
  sample: []
"""
