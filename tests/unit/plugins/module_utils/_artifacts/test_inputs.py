# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import getpass

import model_tree
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import inputs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from module_runner import run_call

ME = getpass.getuser()


def run(monkeypatch, runner=lambda _argv: Completed(0, "complete\n"), check=False, **options):
    monkeypatch.setattr(inputs.command, "run", runner)
    return run_call("engine_inputs", {"user": ME, "group": ME, **options}, check=check)


def test_environments_are_asked_as_their_owner(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    asked = []
    environments = [{"path": str(tmp_path), "requirements": ["vllm"]}, {"path": "/nowhere"}]
    options = {"environments": environments, "oldest_ray": {str(tmp_path): "2.52"}, "question": "print()"}
    result, failed = run(monkeypatch, lambda argv: asked.append(argv) or Completed(0, "complete\n"), **options)
    assert not failed
    assert not result["changed"]
    assert asked == [["runuser", f"--user={ME}", "--", f"{tmp_path}/bin/python", "-c", "print()", '["vllm"]', "2.52"]]
    assert result["environments"] == {
        str(tmp_path): {"owner": ME, "unmet": "complete", "kernels": ""},
        "/nowhere": {"owner": "root", "unmet": "", "kernels": ""},
    }
    result, failed = run(monkeypatch, lambda _argv: Completed(1, "", "no module"), **options)
    assert failed
    assert "no module" in result["msg"]


@pytest.mark.parametrize(
    ("installed", "lacks"),
    [
        ((), ""),
        (("python-0.7.2.post1",), "0.7.2.post1"),
        (("python-0.7.2", "cubin-0.7.2"), "0.7.2"),
        (("python-0.7.2", "cubin-0.7.2", "jit_cache-0.7.1+cu130"), "0.7.2"),
        (("python-0.7.2", "cubin-0.7.2", "jit_cache-0.7.2+cu130"), ""),
    ],
)
def test_kernels_that_a_start_would_compile(tmp_path, installed, lacks):
    for name in installed:
        (tmp_path / f"lib/python3.12/site-packages/flashinfer_{name}.dist-info").mkdir(parents=True)
    assert inputs.without_kernels(tmp_path) == lacks


def test_what_containers_compile_is_for_root(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(inputs, "_directory", lambda *words: asked.append(words) or False)
    assert not run(monkeypatch, kernels="/k")[0]["changed"]
    assert asked == [("/k", "root", "root", 0o700, False)]


def test_the_cache_is_made_once(monkeypatch, tmp_path):
    options = {"cache": f"{tmp_path}/models/hub"}
    assert run(monkeypatch, check=True, **options)[0]["changed"]
    assert not (tmp_path / "models").exists()
    assert run(monkeypatch, **options)[0]["changed"]
    assert (tmp_path / "models/hub").stat().st_mode & 0o777 == 0o755
    assert not run(monkeypatch, **options)[0]["changed"]
    assert not run(monkeypatch, check=True, **options)[0]["changed"]


def test_the_service_user_reads_it(monkeypatch, tmp_path):
    place = model_tree.model(tmp_path / "a")
    models = [{"name": str(place)}]
    refused = Completed(1, f"{place}/config.json\n")
    result, failed = run(monkeypatch, lambda _argv: refused, models=models)
    assert not failed
    assert f"may not read {place}/config.json" in result["models"][0]["problem"]
    assert not run(monkeypatch, lambda _argv: refused, models=[{**models[0], "contained": True}])[0]["models"][0][
        "problem"
    ]
    assert not run(monkeypatch, lambda _argv: refused, models=models, user="nobody-yet")[0]["models"][0]["problem"]
    assert not run(monkeypatch, models=models)[0]["models"][0]["problem"]


def test_a_cache_on_another_disk_is_given_to_its_user_behind_the_link(monkeypatch, tmp_path):
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "hub").symlink_to("disk")
    options = {"cache": f"{tmp_path}/hub"}
    assert run(monkeypatch, **options)[0]["changed"]
    assert (tmp_path / "disk").stat().st_mode & 0o777 == 0o755
    assert not run(monkeypatch, check=True, **options)[0]["changed"]
