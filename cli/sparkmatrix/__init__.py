# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command ``sparkmatrix``: finds the inventory, asks what has to be asked, and runs the playbook that it prints."""

import sys

from sparkmatrix import house

VERSION = "0.2.0"
sys.path.insert(0, str(house.ROOT / "collections"))  # what of the collection decides
