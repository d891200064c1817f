#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: web_ui_data
short_description: Back up what the chat page keeps, and bring it back
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - V(saved) writes one archive that only root reads, with databases as SQLite copies them; the page may run.
  - V(restored) puts an archive in place of the data, which stay beside it. The page must not run. An archive that is
    not exactly what V(saved) writes is refused, and nothing is changed then.
options:
  state:
    description: Which way.
    type: str
    choices: [saved, restored]
    required: true
  data_dir:
    description: What the page keeps.
    type: path
    required: true
  folder:
    description: Where the archive is written, for O(state=saved).
    type: path
  archive:
    description: The archive, for O(state=restored).
    type: path
  program:
    description: Release of the page, noted in the archive.
    type: str
    default: ''
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - Reads all of an archive for O(state=restored).
  diff_mode:
    support: none
  idempotent:
    support: none
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Back it up
  sparkmatrix.cluster.web_ui_data:
    state: saved
    data_dir: /var/lib/sparkmatrix/web-ui
    folder: /var/lib/sparkmatrix/web-ui-backups

- name: Bring it back
  sparkmatrix.cluster.web_ui_data:
    state: restored
    data_dir: /var/lib/sparkmatrix/web-ui
    archive: /var/lib/sparkmatrix/web-ui-backups/web-ui-20261123T220000Z.tar.gz
"""

RETURN = r"""
archive:
  description: The archive.
  returned: success
  type: str
  sample: /var/lib/sparkmatrix/web-ui-backups/web-ui-20261123T220000Z.tar.gz
files:
  description: How many files are in it.
  returned: success, without check mode of O(state=saved)
  type: int
  sample: 12
program:
  description: Release of the page that it was made with.
  returned: success
  type: str
  sample: 0.12.4
kept:
  description: Where the data of before are now.
  returned: success with O(state=restored)
  type: str
  sample: /var/lib/sparkmatrix/web-ui.before-20261123T220500Z
"""

import pwd
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import data, names

LOCK = f"{paths.RUN}/web-ui.lock"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["saved", "restored"], "required": True},
            "data_dir": {"type": "path", "required": True},
            "folder": {"type": "path"},
            "archive": {"type": "path"},
            "program": {"type": "str", "default": ""},
        },
        required_if=[("state", "saved", ["folder"]), ("state", "restored", ["archive"])],
        supports_check_mode=True,
    )
    params = module.params
    act = saved if params["state"] == "saved" else restored
    try:
        with alone(Machine(), "the chat page", LOCK):
            result = act(bool(module.check_mode), **{name: params[name] for name in params if name != "state"})
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=True, **result)


def saved(check_mode: bool, data_dir: str, folder: str, program: str, archive: str) -> dict[str, object]:
    now = time.time()
    if check_mode:
        return {"archive": f"{folder}/{data.name(now)}", "program": program}
    key = managed_secret.parse(Machine().read(paths.WEB_UI_KEY) or "")
    made = data.backup(data_dir, folder, program, key, now)
    return {"archive": made.path, "program": made.program, "files": made.files}


def restored(check_mode: bool, data_dir: str, archive: str, folder: str, program: str) -> dict[str, object]:
    account = pwd.getpwnam(names.USER)
    if check_mode:
        with tempfile.TemporaryDirectory(prefix=".web-ui-", dir=Path(data_dir).parent) as scratch:
            found, kept = data.unpack(archive, Path(scratch, "data")), ""
    else:
        found, kept = data.restore(archive, data_dir, account.pw_uid, account.pw_gid, time.time())
        if found.key:
            managed_secret.ensure(managed_secret.Wanted(names.OWN_KEY, paths.WEB_UI_KEY, value=found.key))
    return {"archive": found.path, "program": found.program, "files": found.files, "kept": kept}


if __name__ == "__main__":
    main()
