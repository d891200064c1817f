# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import stat
import tempfile
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as mf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ME = str(os.geteuid())
MY_GROUP = str(os.getegid())


def text(path, content, mode=0o644, secret=False):
    return mf.File(path, content=content.encode(), owner=ME, group=MY_GROUP, mode=mode, secret=secret)


def link(path, target):
    return mf.File(path, link_to=target, owner=ME, group=MY_GROUP)


def snapshot(root, ignore=mf.paths.MANAGED):
    """Everything under root: {path: (kind, mode, content or target)}, without the state directory."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory, name)
            rel = "/" + str(path.relative_to(root))
            if rel == ignore or rel.startswith(ignore + "/") or ignore.startswith(rel + "/"):
                continue
            status = path.lstat()
            if path.is_symlink():
                found[rel] = ("link", 0, os.readlink(path))
            elif path.is_dir():
                found[rel] = ("dir", stat.S_IMODE(status.st_mode), "")
            else:
                found[rel] = ("file", stat.S_IMODE(status.st_mode), path.read_bytes())
    return found


@pytest.fixture
def root(tmp_path):
    (tmp_path / "etc").mkdir(mode=0o755)
    (tmp_path / "etc/kept.conf").write_text("original\n")
    (tmp_path / "etc/kept.conf").chmod(0o600)
    (tmp_path / "etc/alias").symlink_to("kept.conf")
    return tmp_path


def test_apply_then_absent_brings_everything_back(root):
    before = snapshot(root)
    files = [
        text("/etc/kept.conf", "ours\n", 0o640),
        text("/etc/deep/er/new.conf", "new\n"),
        text("/etc/alias", "a file now\n"),
        link("/opt/current", "../etc/deep"),
    ]
    first = mf.apply_set("demo", files, root=str(root))
    assert first.changed_paths == ["/etc/alias", "/etc/deep/er/new.conf", "/etc/kept.conf", "/opt/current"]
    now = snapshot(root)
    assert now["/etc/kept.conf"] == ("file", 0o640, b"ours\n")
    assert now["/etc/deep/er"] == ("dir", 0o755, "")
    assert now["/etc/alias"] == ("file", 0o644, b"a file now\n")
    assert now["/opt/current"] == ("link", 0, "../etc/deep")
    second = mf.apply_set("demo", files, root=str(root))
    assert (second.changed, second.diff) == (False, [])

    mf.remove_set("demo", root=str(root))
    assert snapshot(root) == before
    assert not (root / "var/lib/sparkmatrix").exists()
    assert not mf.remove_set("demo", root=str(root)).changed


def test_manifest_is_private(root):
    mf.apply_set("demo", [text("/etc/kept.conf", "ours")], root=str(root))
    directory = root / mf.paths.MANAGED[1:]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "demo.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o755


def test_a_directory_with_foreign_content_stays(root):
    mf.apply_set("a", [text("/etc/made/a", "1")], root=str(root))
    (root / "etc/made/foreign").write_text("x")
    mf.remove_set("a", root=str(root))
    assert [p.name for p in (root / "etc/made").iterdir()] == ["foreign"]


def test_the_folder_of_the_node_s_key_goes_with_the_last_set_in_it(root):
    """The key made it, before any set did, and went when sets had files there still."""
    (root / "etc/sparkmatrix").mkdir()
    mf.apply_set("a", [text("/etc/sparkmatrix/filter/a", "1")], root=str(root))
    (root / "etc/sparkmatrix/key").touch()
    mf.remove_set("a", root=str(root))
    assert [p.name for p in (root / "etc/sparkmatrix").iterdir()] == ["key"]
    mf.apply_set("a", [text("/etc/sparkmatrix/filter/a", "1")], root=str(root))
    (root / "etc/sparkmatrix/key").unlink()
    mf.remove_set("a", root=str(root))
    assert not (root / "etc/sparkmatrix").exists()


def test_check_mode_tells_and_touches_nothing(root):
    before = snapshot(root)
    files = [text("/etc/kept.conf", "ours\n"), text("/etc/new/x", "new\n")]
    told = mf.apply_set("demo", files, check_mode=True, root=str(root))
    assert snapshot(root) == before
    assert not (root / "var").exists()
    done = mf.apply_set("demo", files, root=str(root))
    assert (told.changed_paths, told.diff) == (done.changed_paths, done.diff)
    told = mf.remove_set("demo", check_mode=True, root=str(root))
    done = mf.remove_set("demo", root=str(root))
    assert (told.changed_paths, told.diff) == (done.changed_paths, done.diff)


def test_diff_of_contents_attributes_links_and_binaries(root):
    def diff(*files):
        return [(d["before_header"], d["before"], d["after"]) for d in mf.apply_set("demo", files, root=str(root)).diff]

    owner = mf._attributes(mf.State("link", uid=os.geteuid(), gid=os.getegid())).strip()
    assert diff(text("/etc/kept.conf", "original\n", 0o640)) == [
        ("/etc/kept.conf (attributes)", f"{owner} 0600\n", f"{owner} 0640\n")
    ]
    ((header, before, after),) = diff(text("/etc/kept.conf", "original\n", 0o640), text("/etc/bin", "\0a"))
    assert (header, before) == ("/etc/bin", "")
    assert after.startswith("(binary, 2 bytes, sha256 ")
    assert diff(text("/etc/kept.conf", "original\n", 0o640), link("/etc/bin", "elsewhere"))[0][1:] == (
        after,
        "link to elsewhere\n",
    )
    latin = mf.State("file", content=b"\xff\xfe")
    assert mf._text(latin, False, "").startswith("(binary, 2 bytes")
    assert mf._attributes(mf.State("file", mode=0o600, uid=-1, gid=-1)) == "(not there yet):(not there yet) 0600\n"
    assert mf._attributes(mf.State("link", uid=4123456, gid=4123457)) == "4123456:4123457\n"


def test_secrets_are_in_no_diff(root):
    def shown(files):
        return json.dumps(mf.apply_set("demo", files, root=str(root)).diff)

    first = shown([text("/etc/kept.conf", "hunter2\n", secret=True)])
    assert "hunter2" not in first
    assert "original" not in first
    assert "(secret, not shown)" in first
    assert "hunter2" not in shown([text("/etc/kept.conf", "plain\n")])  # it was a secret until now
    assert "plain" in shown([text("/etc/kept.conf", "other\n")])
    shown([text("/etc/kept.conf", "hunter2\n", secret=True)])
    assert "hunter2" not in shown([])


def test_a_path_belongs_to_one_set(root):
    mf.apply_set("a", [text("/etc/kept.conf", "a")], root=str(root))
    with pytest.raises(SparkError, match="already managed by the file set 'a'"):
        mf.apply_set("b", [text("/etc/kept.conf", "b")], root=str(root))
    assert (root / "etc/kept.conf").read_text() == "a"


def test_what_somebody_else_has_put_there_is_refused_on_request(root):
    ours = mf.File("/usr/bin/x", link_to="/y", refuse_foreign=True)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/x").write_text("theirs")
    with pytest.raises(SparkError, match=r"/usr/bin/x: it is there already, and not ours"):
        mf.apply_set("s", [ours], root=str(root))
    assert (root / "usr/bin/x").read_text() == "theirs"
    (root / "usr/bin/x").unlink()
    assert mf.apply_set("s", [ours], root=str(root)).changed
    assert not mf.apply_set("s", [ours], root=str(root)).changed


def test_what_an_earlier_installation_left_there_is_ours_and_goes(root):
    ours = mf.File("/usr/bin/x", link_to="/y", refuse_foreign=True, owner=str(os.getuid()), group=str(os.getgid()))
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/x").symlink_to("/y")
    assert not mf.apply_set("s", [ours], root=str(root)).changed
    mf.apply_set("s", [], root=str(root))
    assert not os.path.lexists(root / "usr/bin/x")


def test_one_file_under_two_names_is_one_file(root):
    (root / "also").symlink_to("etc")
    mf.apply_set("a", [text("/etc/kept.conf", "a")], root=str(root))
    with pytest.raises(SparkError, match="already managed by the file set 'a'"):
        mf.apply_set("b", [text("/also/kept.conf", "b")], root=str(root))
    with pytest.raises(SparkError, match="same file as /etc/n"):
        mf.apply_set("b", [text("/etc/n", "b"), text("/also/n", "b")], root=str(root))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([mf.File("etc/x", b"")], "not absolute"),
        ([mf.File("/etc/../x", b"")], "not a plain file path"),
        ([mf.File("//etc/x", b"")], "not a plain file path"),
        ([mf.File("/etc/x/", b"")], "not a plain file path"),
        ([mf.File("/", b"")], "not a plain file path"),
        ([mf.File("/etc/x", b""), mf.File("/etc/x", b"")], "listed twice"),
        ([mf.File("/etc/x", b""), mf.File("/etc/x/y", b"")], "needs it as a directory"),
        ([mf.File("/etc", b"")], "the path is a directory"),
        ([mf.File("/etc/kept.conf/x", b"")], "not a directory"),
        ([mf.File("/etc/x", b"", owner="no-such-user")], "owner 'no-such-user' does not exist"),
        ([mf.File("/etc/x", b"", owner=ME, group="no-such-group")], "group 'no-such-group' does not exist"),
    ],
)
def test_bad_input_is_one_message_and_no_change(root, files, message):
    before = snapshot(root)
    with pytest.raises(SparkError, match=message):
        mf.apply_set("demo", files, root=str(root))
    assert snapshot(root) == before
    assert not (root / mf.paths.MANAGED[1:]).exists()


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", ".hidden", "x" * 65])
def test_bad_set_name(root, name):
    with pytest.raises(SparkError, match="no name for a set"):
        mf.apply_set(name, [], root=str(root))


def test_a_fifo_is_refused(root):
    os.mkfifo(root / "etc/fifo")
    with pytest.raises(SparkError, match="neither a file nor a link"):
        mf.apply_set("demo", [text("/etc/fifo", "")], root=str(root))


def test_unknown_owner_in_check_mode_is_a_warning(root):
    files = [mf.File("/etc/x", b"a", owner="no-such-user", group="no-such-user") for _ in range(1)]
    result = mf.apply_set("demo", files, check_mode=True, root=str(root))
    assert result.changed
    assert result.warnings == [
        "/etc/x: owner 'no-such-user' does not exist yet",
        "/etc/x: group 'no-such-user' does not exist yet",
    ]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "/etc/kept.conf: cannot write: the disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EPERM, "not permitted"),
        (errno.EIO, "Input/output error"),
        (errno.ENOENT, "Its directory went away"),
    ],
)
@pytest.mark.parametrize("moment", ["create", "fill", "rename"])
def test_what_the_system_refuses_is_one_message_and_leaves_no_half_file(root, monkeypatch, number, message, moment):
    class Broken(mf._Disk):
        def step(self, what, path):
            if what == moment and path == "/etc/kept.conf":
                raise OSError(number, os.strerror(number))

    monkeypatch.setattr(mf._Set, "disk_class", Broken)
    before = snapshot(root)
    with pytest.raises(SparkError, match=message):
        mf.apply_set("demo", [text("/etc/kept.conf", "ours")], root=str(root))
    assert snapshot(root) == before


def test_unwritable_real_directory(root):
    (root / "etc/dir").mkdir()
    os.symlink("/proc/self", root / "etc/dir/proc")
    with pytest.raises(SparkError, match="cannot"):
        mf.apply_set("demo", [text("/etc/dir/proc/new/file", "x")], root=str(root))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": 2}',
        '{"schema": 1, "files": {"/x": {}}, "directories": []}',
        '{"schema": 1, "files": {"/x": {"secret": false, "original": {"kind": "odd"}}}, "directories": []}',
        '{"schema": 1, "files": [], "directories": []}',
    ],
)
def test_damaged_manifest_is_named(root, content):
    directory = root / mf.paths.MANAGED[1:]
    directory.mkdir(parents=True)
    (directory / "other.json").write_text(content)
    with pytest.raises(SparkError, match=r"manifest of the file set 'other' is damaged.*delete it"):
        mf.apply_set("demo", [text("/etc/x", "")], root=str(root))


def test_two_runs_at_once(root, monkeypatch):
    directory = root / mf.paths.MANAGED[1:]
    directory.mkdir(parents=True)
    monkeypatch.setattr(mf, "LOCK_TIMEOUT_S", 0.15)
    with _held(directory), pytest.raises(SparkError, match="another run has been changing files"):
        mf.apply_set("demo", [text("/etc/x", "")], root=str(root))
    assert mf.apply_set("demo", [text("/etc/x", "")], root=str(root)).changed


class _held:
    def __init__(self, directory):
        self.handle = os.open(directory, os.O_RDONLY)

    def __enter__(self):
        fcntl.flock(self.handle, fcntl.LOCK_EX)

    def __exit__(self, *_):
        os.close(self.handle)


def test_long_names_get_a_short_temporary_name(root):
    path = "/etc/" + "n" * 250
    assert len(os.path.basename(mf.temp_path(path))) < 100
    mf.apply_set("demo", [text(path, "x")], root=str(root))
    assert (root / path[1:]).read_text() == "x"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"path": "/x"}, "no content given"),
        ({"path": "/x", "content": "a", "link_to": "b"}, "content and link_to given"),
        ({"path": "/x", "content": "a", "mode": "420"}, "quoted octal string"),
        ({"path": "/x", "content": "a", "mode": "u=rw"}, "quoted octal string"),
        ({"path": "/x", "content_b64": "!"}, "not base64"),
        ({"path": "/x", "link_to": ""}, "link_to is empty"),
        ({"path": "x", "content": ""}, "not absolute"),
        ({"content": ""}, "not absolute"),
    ],
)
def test_params_are_checked(params, message):
    with pytest.raises(SparkError, match=message):
        mf.File.from_params(params)


def test_params():
    assert mf.File.from_params({"path": "/x", "content_b64": "AAE="}).content == b"\0\1"
    built = mf.File.from_params({"path": "/x", "secret_content": "é", "mode": "0600", "owner": "a", "group": "b"})
    assert built == mf.File("/x", "é".encode(), None, "a", "b", 0o600, True)
    assert mf.File.from_params({"path": "/x", "link_to": "y"}).link_to == "y"
    # Jinja drops the last newline of a template
    assert [mf.File.from_params({"path": "/x", "content": c}).content for c in ("a", "a\n", "")] == [
        b"a\n",
        b"a\n",
        b"",
    ]


# -- any order of work, cut short anywhere


class Cut(BaseException):
    """What SIGKILL is to the module: no clean-up runs."""


PATHS = ["/etc/a", "/etc/b", "/etc/dir/c", "/etc/dir/sub/d", "/srv/e"]
ITEMS = st.one_of(
    st.builds(
        text,
        st.sampled_from(PATHS),
        st.sampled_from(["", "one\n", "two\n"]),
        st.sampled_from([0o644, 0o600]),
    ),
    st.builds(link, st.sampled_from(PATHS), st.sampled_from(["/etc/a", "nowhere"])),
)
FILES = st.lists(ITEMS, max_size=4, unique_by=lambda item: item.path)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["apply", "absent", "edit"]),
        st.sampled_from(["s", "t"]),
        FILES,
        st.none() | st.integers(0, 14),
    ),
    max_size=6,
)
ORIGINALS = st.fixed_dictionaries({p: st.sampled_from([None, b"first\n", "-> gone"]) for p in ("/etc/a", "/etc/dir/c")})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(originals=ORIGINALS, steps=STEPS, final=FILES)
def test_any_sequence_heals(originals, steps, final):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # a busy disk would take most of the time
        root = Path(directory)
        (root / "etc").mkdir(mode=0o755)
        for path, content in originals.items():
            if content is not None:
                (root / path[1:]).parent.mkdir(exist_ok=True, mode=0o755)
                if isinstance(content, str):
                    (root / path[1:]).symlink_to("gone")
                else:
                    (root / path[1:]).write_bytes(content)
        before = snapshot(root)
        for action, name, files, cut in steps:
            counter = itertools.count()

            class Fragile(mf._Disk):
                def step(self, what, path, counter=counter, cut=cut):
                    if next(counter) == cut:
                        raise Cut(what, path)

            patch.setattr(mf._Set, "disk_class", Fragile)
            try:
                if action == "edit":
                    _edit(root)
                else:
                    mf.apply_set(name, files if action == "apply" else [], root=directory)
            except (Cut, SparkError):
                pass
        patch.setattr(mf._Set, "disk_class", mf._Disk)
        mf.remove_set("t", root=directory)
        mf.apply_set("s", final, root=directory)
        now = snapshot(root)
        for item in final:
            if item.link_to is not None:
                assert now[item.path] == ("link", 0, item.link_to)
            else:
                assert now[item.path] == ("file", item.mode, item.content)
        assert not mf.apply_set("s", final, root=directory).changed
        mf.remove_set("s", root=directory)
        assert snapshot(root) == before
        assert not (root / "var/lib/sparkmatrix").exists()


def _edit(root):
    """Somebody edits, by hand, a file that a set manages."""
    for path in PATHS:
        real = root / path[1:]
        managed = any(path in json.loads(m.read_text())["files"] for m in (root / mf.paths.MANAGED[1:]).glob("*.json"))
        if managed and real.exists() and not real.is_symlink():
            real.write_text("edited by hand\n")


def test_a_removal_cut_off_before_its_last_directory_is_finished_by_the_next(tmp_path):
    (tmp_path / "var/lib/sparkmatrix").mkdir(parents=True)
    mf.remove_set("t", root=str(tmp_path), check_mode=True)
    assert (tmp_path / "var/lib/sparkmatrix").exists()
    mf.remove_set("t", root=str(tmp_path))
    assert not (tmp_path / "var/lib/sparkmatrix").exists()
    assert (tmp_path / "var/lib").exists()


def test_a_set_that_is_as_it_should_be_has_the_fingerprint_of_what_is_wanted(root):
    def wanted(content="b\n", mode=0o644):
        return [mf.File("/etc/b", content=content.encode(), owner=owner, group=group, mode=mode), link_to_b]

    owner, group = mf._attributes(mf.State("file", uid=os.geteuid(), gid=os.getegid())).split()[0].split(":")
    link_to_b = mf.File("/etc/a", link_to="b", owner=owner, group=group)
    mf.apply_set("one", wanted(), root=str(root))
    mf.apply_set("secret", [text("/etc/s", "word", secret=True)], root=str(root))
    assert mf.fingerprints(root=str(root)) == {"one": mf.fingerprint(reversed(wanted()))}
    assert mf.fingerprint(wanted("c\n")) != mf.fingerprint(wanted()) != mf.fingerprint(wanted(mode=0o600))
    assert mf.fingerprint(wanted()[:1]) != mf.fingerprint(wanted())

    (root / "etc/b").chmod(0o600)
    assert mf.fingerprints(root=str(root)) == {"one": mf.fingerprint(wanted(mode=0o600))}
    Path(mf.temp_path(str(root / "etc/b"))).touch()  # a run was cut off here
    assert mf.fingerprints(root=str(root)) == {}
    Path(mf.temp_path(str(root / "etc/b"))).unlink()
    (root / "etc/b").unlink()
    assert mf.fingerprints(root=str(root)) == {}
