#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Place a set of files that can be taken back
version_added: 0.1.0
description:
  - Places all files of a named set in one call and remembers what each of them replaced. A file that leaves the set is
    removed or gets its original back, and O(state=absent) brings back everything.
  - The originals are kept in C(/var/lib/sparkmatrix/managed/<name>.json), readable by root only. They are written
    before the first change. A run that is interrupted anywhere loses nothing and is completed by the next one.
  - Each file is replaced in one step. Missing parent directories are made with mode C(0755) and removed again when the
    set is, if nothing else lives in them by then.
  - A file that was edited by hand after this module wrote it is put right again. Its first original stays the one that
    is brought back.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  name:
    description: Name of the set. A path belongs to one set only.
    type: str
    required: true
  files:
    description: All files of the set. Used with O(state=present) only.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path, without C(..) or doubled slashes.
        type: str
        required: true
      content:
        description:
          - The text of the file. A newline is added at its end where there is none, because templates lose it.
        type: str
      secret_content:
        description: The text of the file, written as it is, shown in no log and no diff.
        type: str
      content_b64:
        description: The bytes of the file in base64.
        type: str
      link_to:
        description: Makes the path a symbolic link with this target, which need not exist. O(files[].mode) is not used.
        type: str
      owner:
        description: Owner, name or number.
        type: str
        default: root
      group:
        description: Group, name or number.
        type: str
        default: root
      mode:
        description: Mode as a quoted octal string.
        type: str
        default: '0644'
      refuse_foreign:
        description: Fail where somebody else has put something at this path, instead of replacing it.
        type: bool
        default: false
  state:
    description: Whether the set should be there.
    type: str
    choices: [present, absent]
    default: present
  only_when_last:
    description:
      - With O(state=absent), do it only when no other set is on the machine, so that what several layers share goes
        with the last of them.
    type: bool
    default: false
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
notes:
  - In check mode an owner or group that does not exist yet is a warning, because an earlier task would have made it.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Place the settings
  sparkmatrix.cluster.managed_files:
    name: example
    files:
      - path: /etc/sysctl.d/90-sparkmatrix.conf
        content: |
          vm.swappiness = 10
      - path: /etc/sparkmatrix/token
        secret_content: "{{ example_token }}"
        group: sparkmatrix
        mode: '0640'

- name: Bring back what was there before
  sparkmatrix.cluster.managed_files:
    name: example
    state: absent
"""

RETURN = r"""
changed_paths:
  description: Paths that were written, removed or brought back; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample: [/etc/sysctl.d/90-sparkmatrix.conf]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import (
    File,
    Result,
    apply_set,
    names,
    remove_set,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "str", "required": True},
                    "content": {"type": "str"},
                    "secret_content": {"type": "str", "no_log": True},
                    "content_b64": {"type": "str"},
                    "link_to": {"type": "str"},
                    "owner": {"type": "str", "default": "root"},
                    "group": {"type": "str", "default": "root"},
                    "mode": {"type": "str", "default": "0644"},
                    "refuse_foreign": {"type": "bool", "default": False},
                },
                "mutually_exclusive": [("content", "secret_content", "content_b64", "link_to")],
                "required_one_of": [("content", "secret_content", "content_b64", "link_to")],
            },
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "only_when_last": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        if module.params["state"] == "absent":
            result = _remove(module.params["name"], module.params["only_when_last"], module.check_mode)
        else:
            files = [File.from_params(item) for item in module.params["files"]]
            result = apply_set(module.params["name"], files, check_mode=module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in result.warnings:
        module.warn(warning)
    module.exit_json(changed=result.changed, changed_paths=result.changed_paths, diff=result.diff)


def _remove(name: str, only_when_last: bool, check_mode: bool) -> Result:
    if only_when_last and any(other != name for other in names()):
        return Result()
    return remove_set(name, check_mode=check_mode)


if __name__ == "__main__":
    main()
