# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model can be had on this node: a directory is read, a name is looked up in the cache and at the hub.

Asked before anything is stopped: an engine finds out only when it starts, minutes later, and in its own words.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

HUB = "https://huggingface.co"
# Of the engine's environment: what decides where a name is looked up.
VARIABLES = (
    "HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_TOKEN_PATH",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "VLLM_USE_MODELSCOPE",
    "SGLANG_USE_MODELSCOPE",
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_ON = {"1", "true", "yes", "on"}
_CONFIGS = ("config.json", "params.json")  # the second: Mistral's own layout
_INDEX = "*.index.json"
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth", "*.engine")
_ALSO = ("tokenizer*", "tekken.json", "vocab*", "merges.txt", "*.py")  # what else ranks must have alike
_POINTER = b"version https://git-lfs"
_LONGEST_HEADER = 100_000_000  # of a safetensors file, by its own specification
_LARGEST = 64 * 2**20  # of a configuration, or a list of weights
_TIMEOUT_S = 20.0
_NAMED = 3  # files that a message names

FILES, CACHE, DOWNLOAD, ELSEWHERE = "files", "cache", "download", "elsewhere"
Asked = Callable[[urllib.request.Request, Mapping[str, str]], "Reply"]


@dataclass(frozen=True)
class Reply:
    """What the hub said: HTTP status, its own code for a refusal, what it sent, and where it leads."""

    status: int
    code: str = ""
    body: bytes = b""
    location: str = ""
    link: str = ""


@dataclass(frozen=True)
class Seen:
    """``where``: files of the node, the cache, a download to come, or a place that is not looked at.

    ``signature``: the same on two nodes whose files are the same, by configuration, names and sizes.
    """

    where: str
    signature: str = ""
    problem: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look(name: str, revision: str, environment: Mapping[str, str], ask: Asked | None = None) -> Seen:
    """``environment``: of the engine that will read it."""
    if name.startswith("/"):
        return _directory(Path(name))
    named = _NAME.fullmatch(name)
    if not named or any(environment.get(one, "").lower() in _ON for one in VARIABLES if "MODELSCOPE" in one):
        return Seen(ELSEWHERE)  # s3://..., another hub: only the engine knows how to ask there
    return _repository(name, revision, environment, ask or request)


def _directory(place: Path) -> Seen:
    try:
        return Seen(FILES, signature=read(place))
    except SparkError as exc:
        return Seen(FILES, problem=exc.found, remedy=exc.remedy)


# --- files ---


def read(place: Path) -> str:
    """The signature of the model in a directory, or in a file of its own (GGUF). Raises where something is missing."""
    remedy = (
        "Copy the whole model to this path on every node, or correct the path (engine_model_path, or model in the"
        " recipe)"
    )
    try:
        if not place.exists():
            raise SparkError("there is nothing at this path", str(place), remedy)
        if place.is_file():
            wrong = _wrong(place)
            if wrong:
                raise SparkError(wrong, str(place), remedy)
            return _signature("", [place])
        config = next((place / name for name in _CONFIGS if (place / name).is_file()), None)
        if config is None:
            raise SparkError("it has no config.json, so it is no model", str(place), remedy)
        text = _content(config)
        json_text.mapping(text, str(config), remedy)
        files, wrong = _weights(place, remedy)
    except (OSError, ValueError) as exc:
        raise SparkError(f"it cannot be read ({exc})", str(place), remedy) from exc
    if wrong:
        raise SparkError(wrong, str(place), remedy)
    also = [found for pattern in _ALSO for found in place.glob(pattern)]
    return _signature(hashlib.sha256(text).hexdigest(), [*files, *also])


def _weights(place: Path, remedy: str) -> tuple[list[Path], str]:
    """The files of the weights, and what is wrong with them. A repository may have the same weights twice."""
    sets = []
    for index in sorted(place.glob(_INDEX), key=lambda path: ("safetensors" not in path.name, path.name)):
        with json_text.Reading("it names no weights", str(index), remedy):
            named = set(map(str, json_text.mapping(_content(index)).get("weight_map", {}).values()))
        sets.append(sorted(place / name for name in named))
    single = [found for pattern in _WEIGHTS for found in sorted(place.glob(pattern))]
    listed = {path for files in sets for path in files}
    sets.append([path for path in single if path not in listed and path.name != "training_args.bin"])
    first = ""
    for files in filter(None, sets):
        wrong = [f"{path.name} {reason}" for path in files for reason in [_wrong(path)] if reason]
        if not wrong:
            return files, ""
        more = f" and {len(wrong) - _NAMED} more of its {len(files)} files" if len(wrong) > _NAMED else ""
        first = first or ", ".join(wrong[:_NAMED]) + more
    return [], first or f"it has no weights ({', '.join(_WEIGHTS[:3])})"


def _opened(path: Path) -> BinaryIO:
    """A file and no pipe, for which somebody would wait."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise ValueError(f"{path.name} is no file")


def _content(path: Path) -> bytes:
    """The service user may have made it, and root reads it while another model is served."""
    with _opened(path) as opened:
        content = opened.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{path.name} has more than {_LARGEST} bytes")
    return content


def _wrong(path: Path) -> str:
    """Of one file with weights."""
    if not path.exists():
        return "is a link to nothing" if path.is_symlink() else "is missing"
    size = path.stat().st_size
    if not size:
        return "is empty"
    with _opened(path) as opened:
        begin = opened.read(len(_POINTER))
        if begin == _POINTER:
            return "is a pointer of git-lfs and not the file (git lfs pull)"
        if path.suffix != ".safetensors":
            return ""
        opened.seek(0)
        length = int.from_bytes(opened.read(8), "little")
        if length > min(size, _LONGEST_HEADER):
            return f"is damaged or cut off ({size} bytes)"
        try:
            header = json_text.mapping(opened.read(length))
            end = max(
                (int(one["data_offsets"][1]) for name, one in header.items() if name != "__metadata__"), default=0
            )
        except (*json_text.DAMAGE, SparkError):
            return "is damaged"
    whole = 8 + length + end
    return "" if size == whole else f"has {size} bytes of {whole}"


def _signature(config: str, files: Iterable[Path]) -> str:
    sizes = sorted({(path.name, path.stat().st_size) for path in files})
    return hashlib.sha256(json.dumps([config, sizes]).encode()).hexdigest()[:16]


# --- cache and hub ---


def _repository(name: str, revision: str, environment: Mapping[str, str], ask: Asked) -> Seen:
    cache = _cache(environment)
    place = cache / f"models--{name.replace('/', '--')}" if cache else None
    snapshot = _snapshot(place, revision or "main") if place else None
    lacking = "it is not in the cache"
    if snapshot is not None:
        try:
            return Seen(CACHE, signature=read(snapshot))
        except SparkError as exc:
            lacking = f"in the cache {exc.found}"
    if any(environment.get(variable, "").lower() in _ON for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        return Seen(
            DOWNLOAD,
            problem=f"{lacking} ({place or 'the engine has none'}), and its environment forbids downloads",
            remedy="Take HF_HUB_OFFLINE out of the environment, or put the model there",
        )
    problem, remedy = _refusal(name, revision, environment, ask)
    if problem:
        problem = f"{lacking}, and {problem}"
    return Seen(DOWNLOAD, problem=problem, remedy=remedy)


def _cache(environment: Mapping[str, str]) -> Path | None:
    if environment.get("HF_HUB_CACHE"):
        return Path(environment["HF_HUB_CACHE"])
    home = environment.get("HF_HOME") or (f"{environment['HOME']}/.cache/huggingface" if "HOME" in environment else "")
    return Path(home, "hub") if home else None


def _snapshot(place: Path, revision: str) -> Path | None:
    try:
        commit = _content(place / "refs" / revision).decode().strip()
    except (OSError, ValueError):
        commit = revision
    found = place / "snapshots" / commit
    return found if found.is_dir() else None


def _refusal(name: str, revision: str, environment: Mapping[str, str], ask: Asked) -> tuple[str, str]:
    """Why the hub would not give it, and what to do; empty where it would."""
    hub = endpoint(environment)
    if not hub.startswith(("https://", "http://")):
        return f"HF_ENDPOINT is {hub}, which is no address of a hub", "Write it like https://huggingface.co"
    # The scheme has been looked at.
    asked = urllib.request.Request(  # noqa: S310
        f"{hub}/{name}/resolve/{revision or 'main'}/config.json", method="HEAD"
    )
    found = token(environment)
    if found:
        asked.add_header("Authorization", f"Bearer {found}")
    try:
        reply = ask(asked, environment)
    except OSError as exc:
        return unreached(hub, exc)
    return refusal(reply, name, revision, hub, bool(found))


def endpoint(environment: Mapping[str, str]) -> str:
    return (environment.get("HF_ENDPOINT") or HUB).rstrip("/")


def unreached(hub: str, exc: OSError) -> tuple[str, str]:
    return (
        f"{hub} cannot be reached from this node ({getattr(exc, 'reason', exc)})",
        "Look at network, DNS and proxy of the node; or put the model on every node and name its path:"
        " engine_model_path",
    )


def refusal(reply: Reply, name: str, revision: str, hub: str, token: bool) -> tuple[str, str]:
    """What an answer means, and what to do; empty where it is no refusal."""
    of = f"of {name} at {hub}"
    if reply.status < 400 or reply.code == "EntryNotFound":
        return "", ""
    if reply.code == "RevisionNotFound":
        return f"there is no revision {revision or 'main'} {of}", "Correct the revision in the recipe"
    if reply.code == "GatedRepo":
        return (
            f"its licence has not been accepted {'with the token' if token else 'here: there is no token'} {of}",
            f"Accept it at {hub}/{name}, put a token of that account into a file on every node, and name the file:"
            " engine_environment: {HF_TOKEN_PATH: /path}",
        )
    if reply.status in (401, 403, 404):
        return (
            f"there is no such repository, or it is a private one{'' if token else ' and there is no token'} {of}",
            "Correct the name (a path begins with /); for a private one name a file with a token on every node:"
            " engine_environment: {HF_TOKEN_PATH: /path}",
        )
    return f"{hub} answers HTTP {reply.status}", "Try again later"


def token(environment: Mapping[str, str]) -> str:
    cache = environment.get("HF_HOME")
    for place in (environment.get("HF_TOKEN_PATH"), f"{cache}/token" if cache else ""):
        try:
            text = _content(Path(place)).decode().strip() if place else ""
        except (OSError, ValueError):
            text = ""
        # One line: nothing else is a header.
        if re.fullmatch(r"[\w.-]+", text):
            return text
    return ""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Where it leads does not matter; and the token is for the hub alone."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        return None


def _proxies(host: str, environment: Mapping[str, str]) -> dict[str, str]:
    """By scheme, as the clients of the engines have it: nothing of the environment that this runs in."""
    besides = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if besides and urllib.request.proxy_bypass_environment(host, {"no": besides}):  # type: ignore[attr-defined]
        return {}
    named = {
        one: environment.get(f"{one}_proxy".upper()) or environment.get(f"{one}_proxy") for one in ("https", "http")
    }
    return {one: proxy for one, proxy in named.items() if proxy}


def request(asked: urllib.request.Request, environment: Mapping[str, str], most: int = 0) -> Reply:
    """``most``: bytes of the answer that are wanted."""
    proxies = urllib.request.ProxyHandler(_proxies(asked.host, environment))
    authorities = environment.get("SSL_CERT_FILE") or environment.get("REQUESTS_CA_BUNDLE") or None
    folder = authorities if authorities and Path(authorities).is_dir() else None
    context = ssl.create_default_context(cafile=None if folder else authorities, capath=folder)
    secure = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(proxies, secure, _Stay())
    try:
        with opener.open(asked, timeout=_TIMEOUT_S) as answer:
            return Reply(answer.status, body=answer.read(most) if most else b"", link=answer.headers.get("Link", ""))
    except urllib.error.HTTPError as exc:
        return Reply(exc.code, exc.headers.get("X-Error-Code", ""), location=exc.headers.get("Location", ""))
    except http.client.HTTPException as exc:
        raise OSError(f"it answers what is no HTTP: {type(exc).__name__}") from exc
