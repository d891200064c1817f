"""Print "complete", or the requirements that this Python environment does not satisfy.

argv: a JSON list of requirements as pip takes them, and the oldest Ray that may be in it (nothing: none is started).
"""

import importlib.metadata
import json
import pathlib
import sys
import urllib.parse

try:
    from packaging import requirements, utils
except ImportError:
    try:  # an environment in which nothing is installed has pip's own
        from pip._vendor.packaging import requirements, utils
    except ImportError:  # its making was interrupted
        print("pip")
        sys.exit()

# What an interrupted pip leaves has no name, or one that begins with a tilde.
installed = {
    utils.canonicalize_name(one.metadata["Name"]): one
    for one in importlib.metadata.distributions()
    if one.read_text("METADATA") and one.metadata["Name"] and not one._path.name.startswith("~")
}


def version_of(name):
    return installed[name].version if name in installed else ""


def place(url):
    """What tells one source from another: not who logs in there, and not which hash it must have."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2], urllib.parse.unquote(parts.path).rstrip("/")


def sources():
    """Where pip has installed from when it was not by name (PEP 610)."""
    for one in installed.values():
        direct = json.loads(one.read_text("direct_url.json") or "{}")
        vcs = direct.get("vcs_info", {})
        prefix, revision = (f"{vcs['vcs']}+" if vcs else ""), vcs.get("requested_revision")
        yield place(prefix + direct.get("url", "") + (f"@{revision}" if revision else ""))


def from_source(url):
    """Like pip: a wheel is there when its version is; anything else was installed from the same place."""
    try:
        name, version = utils.parse_wheel_filename(place(url)[2].rpartition("/")[2])[:2]
    except utils.InvalidWheelFilename:
        return place(url) in sources()
    return version_of(name) == str(version)


def unmet(text):
    """What is wrong with a requirement, or nothing."""
    try:
        wanted = requirements.Requirement(text)
    except requirements.InvalidRequirement:  # a path or a URL without a name
        source = text.partition(" ;")[0].strip()
        return "" if from_source(source if "://" in source else pathlib.Path(source).resolve().as_uri()) else text
    present = version_of(utils.canonicalize_name(wanted.name))
    if wanted.marker and not wanted.marker.evaluate():
        return ""
    if from_source(wanted.url) if wanted.url else present and wanted.specifier.contains(present, prereleases=True):
        return ""
    return f"{text} (installed: {present or 'none'})"


asked = [text for text in json.loads(sys.argv[1]) if not text.startswith("-")]  # options are for pip alone
if sys.argv[2:] and sys.argv[2]:
    asked.append(f"ray>={sys.argv[2]}")
print("\n".join(filter(None, map(unmet, asked))) or "complete")
