"""Print "complete", or the requirements that this environment does not satisfy. argv: a JSON list of NAME==VERSION."""

import importlib.metadata
import json
import sys

missing = []
for requirement in json.loads(sys.argv[1]):
    name, _equals, version = requirement.partition("==")
    try:
        present = importlib.metadata.version(name.partition("[")[0].strip())
    except importlib.metadata.PackageNotFoundError:
        present = ""
    # A local version such as 2.13.0+cpu is a build of 2.13.0.
    if not present or (version and present.partition("+")[0] != version.strip().partition("+")[0]):
        missing.append(f"{requirement} (installed: {present or 'none'})")
print("\n".join(missing) or "complete")
