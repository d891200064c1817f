"""Print "complete", or the requirements that this environment does not satisfy.

argv: a JSON list of NAME==VERSION, and the oldest Ray that may be in it (2.52), or nothing where none is started.
"""

import importlib.metadata
import json
import re
import sys


def version_of(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


missing = []
for requirement in json.loads(sys.argv[1]):
    name, _equals, version = requirement.partition("==")
    present = version_of(name.partition("[")[0].strip())
    # A local version such as 2.13.0+cpu is a build of 2.13.0.
    if not present or (version and present.partition("+")[0] != version.strip().partition("+")[0]):
        missing.append(f"{requirement} (installed: {present or 'none'})")
oldest = [int(part) for part in sys.argv[2].split(".")] if sys.argv[2:] and sys.argv[2] else []
present = version_of("ray") if oldest else ""
if [int(part) for part in re.findall(r"\d+", present)[: len(oldest)]] < oldest:
    missing.append(f"ray>={sys.argv[2]} (installed: {present or 'none'})")
print("\n".join(missing) or "complete")
