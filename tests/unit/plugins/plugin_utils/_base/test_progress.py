# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import os
import tempfile

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.progress import Channel


def test_what_forks_tell_is_read_once_and_the_last_of_it():
    channel = Channel()
    assert not channel.is_open and channel.news() == ""
    channel.open()
    assert channel.is_open and channel.news() == ""
    for words in ("loading\n10 s", "x" * 1000):
        child = os.fork()
        if child == 0:
            channel.tell(words)
            os._exit(0)
        os.waitpid(child, 0)
        assert channel.news() == " ".join(words.split())[:200]
    assert channel.news() == ""
    channel.tell("one")
    channel.tell("two")
    assert channel.news() == "two"


def full(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", full)
        channel.open()
    assert not channel.is_open and channel.news() == ""
    channel.open()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        channel.tell("one")
    assert channel.is_open and channel.news() == ""
