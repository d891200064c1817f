# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Wheels in a directory: an engine that needs a helper, of which there are two versions, and another one.

The same bytes each time, since lock.txt has their hashes. argv: the directory.
"""

import pathlib
import sys
import zipfile

place = pathlib.Path(sys.argv[1])
place.mkdir(exist_ok=True)
for name, version, needs in (
    ("engine", "1.0", "Requires-Dist: helper\n"),
    ("helper", "1.0", ""),
    ("helper", "2.0", ""),
    ("other", "1.0", "Requires-Dist: helper\n"),
):
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(place / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, content in files.items():
            wheel.writestr(zipfile.ZipInfo(file), content)
