# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which engine is there, and what its parser lists: pieces of real output of vLLM 0.32 and of click."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import version
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Unknown
from module_runner import run_call

HELP = """\
usage: vllm serve [model_tag] [options]

Search by using: `--help=<ConfigGroup>` to explore options by section (e.g.,
--help=ModelConfig, --help=Frontend)

options:
  --aggregate-engine-logging
                        Log aggregate rather than per-engine statistics when
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many API server processes to run. See --gone
  --config CONFIG       Read CLI options from a file, as --swap-space did
  --enable-log-requests, --no-enable-log-requests
                        --speculative-model is something else
"""
CLICK = """\
Options:
  --tp_size, --tensor_parallel_size INTEGER
                                  Tensor parallelism size.
  --backend [pytorch|_autodeploy]
"""
IMAGE = Unknown("x/y:nightly", contained=True, distributions=("vllm",), help_words=("vllm",))


def test_only_the_column_of_options_counts():
    assert version.options_in(HELP) == [
        "--aggregate-engine-logging",
        "--api-server-count",
        "--config",
        "--enable-log-requests",
        "--no-enable-log-requests",
        "-asc",
    ]
    assert version.options_in(CLICK) == ["--backend", "--tensor_parallel_size", "--tp_size"]


def test_the_question_finds_packages_and_programs_of_its_own_python():
    script = "for number in range(30): print(f'  --option-{number}')"
    question = json.dumps([["no-such-package", "pytest"], ["python3", "-c", script]])
    done = command.run([sys.executable, "-c", version.ASK, question])
    answer = version.ask(
        replace(IMAGE, contained=False, name="/venv"), lambda _argv: done, user="sparkmatrix", home="/home"
    )
    assert answer.version == pytest.__version__
    assert len(answer.options) == 30 and "--option-29" in answer.options


@pytest.mark.parametrize(
    ("text", "cuda"), [("cuda: Optional[str] = '12.9'\nhip = None\n", "12.9"), ("cuda = None\n", ""), (None, "")]
)
def test_the_question_finds_for_which_cuda_torch_is_made(tmp_path, monkeypatch, text, cuda):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    if text is not None:
        (tmp_path / "torch/version.py").write_text(text)
    done = command.run([sys.executable, "-c", version.ASK, json.dumps([[], ["true"]])])
    assert json.loads(done.out.splitlines()[-1])["cuda"] == cuda


def test_too_few_options_are_no_list():
    told = Completed(0, json.dumps({"version": "0.34.0", "cuda": "12.9", "help": HELP}))
    assert version.ask(IMAGE, lambda _argv: told, user="u", home="/h") == version.Answer("0.34.0", (), "12.9")


@pytest.mark.parametrize("done", [Completed(125, "", "no space left"), Completed(0, "\n[]"), Completed(0, "banner")])
def test_what_cannot_be_asked_is_refused(done):
    with pytest.raises(SparkError, match="x/y:nightly"):
        version.ask(IMAGE, lambda _argv: done, user="u", home="/h")


def test_an_environment_is_not_asked_as_root():
    seen = []

    def runner(argv):
        seen.append(argv)
        return Completed(0, '{"version": "1", "cuda": "", "help": ""}')

    version.ask(replace(IMAGE, contained=False, name="/venv"), runner, user="sparkmatrix", home="/h")
    assert seen[0][:7] == ["runuser", "-u", "sparkmatrix", "--", "env", "HOME=/h", "/venv/bin/python"]


def test_the_module(monkeypatch, tmp_path):
    monkeypatch.setattr(
        version.command,
        "run",
        lambda _argv, _timeout: Completed(0, '{"version": "0.34", "cuda": "13.0", "help": ""}'),
    )
    one = vars(replace(IMAGE, contained=False, name=str(tmp_path)))
    given = {"engines": [one], "user": "sparkmatrix", "home": "/h"}
    result, failed = run_call("engine_version", given)
    assert not failed and result["engines"] == {str(tmp_path): {"version": "0.34", "options": [], "cuda": "13.0"}}
    result, failed = run_call("engine_version", given, check=True)
    assert not failed and result["engines"] == {}  # nothing is installed there yet
    monkeypatch.setattr(version.command, "run", lambda _argv, _timeout: Completed(127, "", "not found"))
    result, failed = run_call("engine_version", given)
    assert failed and "cannot be asked which engine it has" in result["msg"]
