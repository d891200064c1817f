# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What every module of this collection says about check mode, diff mode and idempotency.

A module that changes something extends ``sparkmatrix.cluster.attributes`` and states its own ``support`` (and
``details``) per attribute. A module that only reads extends ``sparkmatrix.cluster.attributes.info_module`` as well and
states nothing.
"""

from __future__ import annotations


class ModuleDocFragment:
    # Names and meaning follow community.docker and community.general, so that readers find what they know.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed or would change in C(check_mode), when in diff mode.
  idempotent:
    description:
      - When run twice in a row outside check mode, with the same arguments, the second invocation indicates no change.
      - This assumes that the system controlled or queried by the module has not changed in a relevant way.
  platform:
    description: Target operating systems that the module works on.
    platforms: linux
    support: full
"""

    # Use together with the fragment above.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This action does not modify state.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
    details:
      - This action does not modify state.
"""
