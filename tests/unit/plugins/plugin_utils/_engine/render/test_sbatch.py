# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The batch script for Slurm: bash accepts it, and each node gets the plan's own words and environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import sbatch
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import required

RECIPES = {path.stem: required(*recipe.read(path)) for path in sorted(recipe.SHIPPED.glob("*.yml"))}
BASH = shutil.which("bash") or ""
CASES = [
    ("qwen3-8b", 1, {"engine": "vllm"}),
    ("qwen3-235b-a22b-gptq-int4", 2, {"launch": "ray", "engine": "vllm"}),
    ("qwen3-235b-a22b-gptq-int4", 4, {"launch": "native", "engine": "vllm"}),
    ("qwen3-235b-a22b-gptq-int4", 4, {"engine": "sglang"}),
    ("llama-3.1-70b-fp8", 2, {"engine": "tensorrt-llm"}),
    (
        "qwen3-235b-a22b-gptq-int4",
        2,
        {"engine": "vllm", "runtime": "container", "image": "nvcr.io/nvidia/vllm:26.05-py3"},
    ),
]


def made(name: str, count: int, settings: dict[str, Any]) -> Any:
    wanted = UserSettings(only_print=True, **{"requirements": ("vllm==0.33.0", "ray[default]==2.60.0"), **settings})
    result = plan(RECIPES[name], assumed_facts([f"spark{number + 1}" for number in range(count)]), wanted, {})
    assert result.plans, [str(finding) for finding in result.findings]
    return result.plans


def accepted(text: str) -> None:
    done = subprocess.run([BASH, "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_plan_gives_a_script_that_bash_accepts(name, count):
    wanted = UserSettings(only_print=True, requirements=("vllm==0.33.0", "ray[default]==2.60.0"))
    result = plan(RECIPES[name], assumed_facts([f"spark{number + 1}" for number in range(count)]), wanted, {})
    if not result.plans:
        assert result.findings
        return
    text = sbatch.script(result.plans)
    accepted(text)
    assert f"#SBATCH --nodes={count}\n" in text


@pytest.mark.parametrize("model", ["/opt/sparkmatrix/models/a,/etc/shadow:/x", "/opt/sparkmatrix/models/a:b"])
def test_a_path_is_no_further_mount(model):
    plans = made("qwen3-8b", 1, {"runtime": "container", "model": model})
    with pytest.raises(SparkError, match="has a comma or a colon"):
        sbatch.script(plans)


@pytest.mark.parametrize(("name", "count", "settings"), CASES)
def test_each_node_runs_what_the_plan_says(name, count, settings, tmp_path: Path):
    """srun is a stand-in that runs the function on each node's behalf; exec shows what would be started."""
    plans = made(name, count, settings)
    text = sbatch.script(plans)
    accepted(text)
    function = text[text.index("start() {") : text.index("export -f start")]
    # /tmp is not ours in a test.
    (tmp_path / "function.sh").write_text(function.replace("/tmp/sparkmatrix-", f"{tmp_path}/w-"))
    (tmp_path / "w-7/config").mkdir(parents=True)
    for host, node in plans.items():
        what = (
            f'SLURM_JOB_ID=7; SLURMD_NODENAME={host}; mkdir() {{ :; }}; ulimit() {{ :; }}; exec() {{ printf "%s\\n"'
            ' "$@"; env -0 > environ; exit 0; }; source ./function.sh; start engine'
        )
        done = subprocess.run(
            [BASH, "-c", what],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            check=False,
            env={"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, done.stderr
        words = done.stdout.splitlines()
        source = node.here[0].engine
        if node.here[0].backend == "mpi":  # Slurm starts the ranks, all alike
            source = plans[node.here[0].head].here[0].engine
            assert words[0].endswith("trtllm-llmapi-launch")
        argv = [*source.command.program, *source.command.options]
        shown = [f"{tmp_path}/w-7/{sbatch._name(word)}" if word in source.files else word for word in argv]
        assert words == shown
        environ = dict(item.split("=", 1) for item in (tmp_path / "environ").read_text().split("\0") if "=" in item)
        planned = {name: value for name, value in node.here[0].engine.env.items() if name not in sbatch._DROPPED}
        expected = {name: value for name, value in planned.items() if "/var/lib/sparkmatrix/kernels/" not in value}
        assert not any("sparkmatrix-node" in value for value in environ.values())
        assert {name: environ.get(name) for name in expected} == expected
        assert not set(environ) & set(node.here[0].engine.starter_env)
        for path, content in source.files.items():
            assert (tmp_path / "w-7" / sbatch._name(path)).read_text() == content


def test_a_node_that_the_plan_does_not_know(tmp_path: Path):
    text = sbatch.script(made(*CASES[0]))
    function = text[text.index("start() {") : text.index("export -f start")].replace("/tmp/", f"{tmp_path}/")
    done = subprocess.run(
        [BASH, "-c", f"SLURM_JOB_ID=7 SLURMD_NODENAME=other\n{function}\nstart engine"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "The plan knows no node other" in done.stderr


@pytest.mark.parametrize("there", ["link", "file"])
def test_a_work_directory_of_somebody_else_is_refused(there, tmp_path: Path):
    text = sbatch.script(made(*CASES[0]))
    work = tmp_path / "sparkmatrix-7"
    if there == "link":
        (tmp_path / "elsewhere").mkdir()
        work.symlink_to(tmp_path / "elsewhere")
    else:
        work.write_text("")
    function = text[text.index("start() {") : text.index("export -f start")].replace("/tmp/", f"{tmp_path}/")
    done = subprocess.run(
        [BASH, "-c", f"SLURM_JOB_ID=7 SLURMD_NODENAME=spark1\n{function}\nstart engine"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{work} on spark1 is not a directory of yours; submit the job again" in done.stderr
    assert there == "file" or not list((tmp_path / "elsewhere").iterdir())


def test_no_secret_is_in_the_script_and_a_key_that_others_can_read_is_refused(tmp_path: Path):
    text = sbatch.script(made(*CASES[1]))
    assert "RAY_AUTH_TOKEN_PATH" not in text and "/var/lib/sparkmatrix" not in text
    head = text[: text.index("\n# What a node runs")]
    key = tmp_path / "key"
    key.write_text("abc\n")
    environment = {"PATH": os.environ["PATH"], "SPARKMATRIX_KEY_FILE": str(key)}
    for mode, code in ((0o644, 1), (0o600, 0)):
        key.chmod(mode)
        done = subprocess.run([BASH, "-c", head], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert ("mode 0600" in done.stderr) == bool(code)


def test_ray_is_waited_for_and_slurm_takes_the_place_of_mpirun():
    ray = sbatch.script(made(*CASES[1]))
    assert "bash -c 'start ray' &" in ray and "!= 2)" in ray and ray.rstrip().endswith("bash -c 'start engine'")
    mpi = sbatch.script(made(*CASES[4]))
    assert "mpirun" not in mpi and "--mpi=pmix --nodes=2 --ntasks=2" in mpi
    assert "mpi.token" not in mpi and "sparkmatrix-node" not in mpi
    single = sbatch.script(made(*CASES[0]))
    assert "srun --export=ALL --kill-on-bad-exit=1 --nodes=1 --ntasks=1 bash -c 'start engine'" in single


def test_a_container_is_started_by_pyxis():
    text = sbatch.script(made(*CASES[5]))
    assert "/var/lib/sparkmatrix/kernels" not in text
    assert "--container-image='nvcr.io#nvidia/vllm:26.05-py3'" in text or "=nvcr.io#nvidia/vllm:26.05-py3" in text
    assert "/etc/nccl.conf" not in text


@pytest.mark.parametrize("case", [CASES[1], (*CASES[5][:2], {**CASES[5][2], "launch": "ray"})])
@pytest.mark.parametrize(
    ("says", "starts"),
    [
        ("ray, version 2.52.0", True),
        ("a warning\nray, version 2.60.0", True),
        ("ray, version 3.0.0", True),
        ("ray, version 2.51.9", False),
        ("ray, version 1.99.0", False),
        ("", False),
    ],
)
def test_a_ray_without_tokens_is_not_started(case, says, starts, tmp_path: Path):
    """The version counts that the program itself tells on the node."""
    plans = made(*case)
    text = sbatch.script(plans)
    function = text[text.index("start() {") : text.index("export -f start")].replace("/tmp/", f"{tmp_path}/")
    ray = tmp_path / "bin/ray"
    ray.parent.mkdir()
    ray.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo '{says}' || echo started\n" if says else "#!/bin/sh\nexit 1\n"
    )
    ray.chmod(0o755)
    function = function.replace("/opt/sparkmatrix/engine/bin/ray", str(ray))
    done = subprocess.run(
        [BASH, "-c", f"SLURM_JOB_ID=7 SLURMD_NODENAME=spark1\n{function}\nstart ray"],
        env={"PATH": f"{ray.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0 and done.stdout == "started\n") is starts, done.stderr
    assert ("has to be Ray 2.52 or newer" in done.stderr) is not starts


def test_who_starts_no_ray_is_not_asked_for_one():
    assert all("--version" not in sbatch.script(made(*CASES[number])) for number in (0, 2, 3, 4))
