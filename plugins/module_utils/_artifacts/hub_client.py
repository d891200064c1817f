# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Files of a model, downloaded by Hugging Face's own client. Runs in the Python environment that has it, as a user who
may do nothing else, and is watched by :mod:`_artifacts.hub`.

What arrives is appended to ``<blob>.part``, so that whoever ends it loses nothing. `hf download` cannot do that:
its newer releases begin a file anew (huggingface_hub issue 4196).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

HELP = "download files of a model with Hugging Face's client (for the artifacts layer)"
REFUSED, DISK, NETWORK, CLIENT = "refused", "disk", "network", "client"
WORKERS = 4
_NO_SPACE = (28, 122)  # ENOSPC, EDQUOT
_REFUSALS = ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "RemoteEntryNotFoundError")


def configure(_parser: argparse.ArgumentParser) -> None:
    """What to do is read from standard input: nobody sees it in a list of processes."""


def run(_arguments: argparse.Namespace) -> int:
    try:
        _all(json.load(sys.stdin))
    except Exception as exc:  # pylint: disable=broad-exception-caught  # whatever a client raises is told to who watches
        sys.stdout.write(json.dumps({"kind": _kind(exc), "says": _says(exc)}) + "\n")
        sys.stdout.flush()
        return 1
    return 0


def _all(asked: Mapping[str, Any]) -> None:
    client = _Client(asked)
    os.chdir(asked["place"])
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        waiting = [pool.submit(client.bring, file) for file in asked["files"]]
        try:
            for future in as_completed(waiting):
                future.result()
        except BaseException:
            for future in waiting:
                future.cancel()
            raise


class _Client:
    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.hub: Any = importlib.import_module("huggingface_hub")
        self.download: Any = importlib.import_module("huggingface_hub.file_download")
        self.xet: Any = importlib.import_module("huggingface_hub.utils._xet")
        self.asked = asked
        # Its 10 MB at once look like a stall on a slow line, and are lost when it is cut.
        self.hub.constants.DOWNLOAD_CHUNK_SIZE = 256 * 1024
        self.headers = {**self.hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
        no_xet = self.hub.constants.HF_HUB_DISABLE_XET or not self.download.is_xet_available()
        self.group = None if no_xet or not any(file["xet"] for file in asked["files"]) else self._connect()

    def bring(self, one: Mapping[str, Any]) -> None:
        """What is there is not brought again, not even in part."""
        part = f"{one['blob']}.part"
        if os.path.exists(one["blob"]):
            return
        with open(part, "ab") as file:
            if file.tell() > one["size"]:
                file.seek(0)
                file.truncate()
            if file.tell() < one["size"]:
                self._append(one, file)
            if file.tell() != one["size"]:
                raise OSError(f"{one['path']} has {file.tell()} bytes of {one['size']}")
        os.rename(part, one["blob"])

    def _append(self, one: Mapping[str, Any], file: Any) -> None:
        asked = self.asked
        if self.group is not None and one["xet"]:
            info = importlib.import_module("hf_xet").XetFileInfo(one["xet"], one["size"])
            for chunk in self.group.download_stream(info, start=file.tell()):
                file.write(chunk)
            return
        self.download.http_get(
            self.hub.hf_hub_url(asked["name"], one["path"], revision=asked["revision"], endpoint=asked["hub"]),
            file,
            resume_size=file.tell(),
            headers=self.headers,
            expected_size=one["size"],
        )

    def _connect(self) -> Any:
        """One pool of connections for all files, with a token of a few minutes that it renews by itself."""
        renew = self.xet.xet_connection_info_refresh_url(
            token_type=self.xet.XetTokenType.READ,
            repo_id=self.asked["name"],
            repo_type="model",
            revision=self.asked["revision"],
            endpoint=self.asked["hub"],
        )
        data = self.xet.XetFileData(file_hash="", refresh_route=renew)
        info = self.xet.refresh_xet_connection_info(file_data=data, headers=self.headers)
        return self.xet.get_xet_session().new_download_stream_group(
            endpoint=info.endpoint,
            token=info.access_token,
            token_expiry_unix_secs=info.expiration_unix_epoch,
            token_refresh_url=renew,
            token_refresh_headers=self.headers,
            custom_headers=self.xet.xet_headers_without_auth(self.headers),
        )


def _kind(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.errno in _NO_SPACE:
        return DISK
    if isinstance(exc, (AttributeError, ImportError, NameError, TypeError)):
        return CLIENT
    names = {one.__name__ for one in type(exc).__mro__}
    return REFUSED if names & set(_REFUSALS) else NETWORK


def _says(exc: BaseException) -> str:
    """On one line, and without what stands behind the ? of an address: it lets its reader in."""
    text = re.sub(r"\?\S+", "", " ".join(f"{type(exc).__name__}: {exc}".split()))
    return text[:500]
