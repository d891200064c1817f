# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What runs on nodes is loaded by every Python that they may have, as far as this machine has it; nothing but the
standard library and Ansible's own module_utils is there."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.9", *(pytest.param(one, marks=pytest.mark.full) for one in ("3.10", "3.11", "3.12")), "3.13")
LOAD = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
base = "ansible_collections.sparkmatrix.cluster.plugins"
for path in sorted([*root.glob("module_utils/**/*.py"), *root.glob("modules/*.py")]):
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    importlib.import_module(f"{base}.{name}")
print("loaded with %d.%d" % sys.version_info[:2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_of_a_node_loads_what_runs_there(version: str, tmp_path: Path) -> None:
    found = subprocess.run(["tests/tools/find_python", version], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"Python {version} is not on this machine")
    ansible = find_spec("ansible")
    assert ansible and ansible.origin
    # Ansible alone, without what else is in its environment.
    (tmp_path / "ansible").symlink_to(Path(ansible.origin).parent)
    path = f"{ROOT / 'collections'}:{tmp_path}"
    done = subprocess.run(
        [found.stdout.strip(), "-sB", "-W", "error::SyntaxWarning", "-c", LOAD, str(ROOT / "plugins")],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"loaded with {version}\n", done.stderr[-3000:]
