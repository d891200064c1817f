# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An image that one of the nodes builds."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Image
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    consent,
    image_build,
    own_command,
    services,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import REQUIREMENTS, node_plans
from planning import plan

NAME = "sparkmatrix/vllm:v0.33.0"


@pytest.fixture
def dockerfile(tmp_path):
    path = tmp_path / "Dockerfile"
    path.write_text("FROM scratch\nARG CACHE_BUST\narg A=0 B\n")
    return path


def test_the_tag_tells_dockerfile_and_arguments(dockerfile):
    build = Build(str(dockerfile), {"A": "1"})
    made = image_build.name(NAME, build)
    assert made.startswith(f"{NAME}-") and len(made) == len(NAME) + 13 and not consent.moves(made)
    assert image_build.of(made, [Build(), build]) == build
    others = [Build(str(dockerfile)), Build(str(dockerfile), {"A": "2"}), Build(str(dockerfile), {"A": "1", "B": ""})]
    assert len({made, *(image_build.name(NAME, one) for one in others)}) == 4
    assert image_build.of(made, others) is None
    dockerfile.write_text("FROM scratch\nARG A B\n")
    assert image_build.name(NAME, build) != made and image_build.of(made, [build]) is None


def test_the_dockerfiles_that_come_with_the_collection_are_for_a_spark():
    shipped = image_build.read(Build("vllm"))
    assert "ARG TORCH_CUDA_ARCH_LIST=12.1a\n" in shipped and "ARG CACHE_BUST" in shipped and "ARG MAX_JOBS" in shipped


def test_what_docker_knows_by_itself_needs_no_arg():
    assert image_build.read(Build("vllm", {"https_proxy": "http://proxy:3128", "RAY": "2.60.0"}))


def test_the_plan_names_what_is_built(dockerfile):
    build = Build(str(dockerfile), {"A": "1"})
    for node_plan in node_plans(2, runtime="container", image=NAME, image_build=build).values():
        (service,) = node_plan.here
        assert service.image == image_build.name(NAME, build) and service.engine.version == "0.33.0"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"runtime": "venv"}, "in a Python environment and not in a container"),
        ({"image": ""}, "nothing is no name for an image that is built here"),
        ({"image": "vllm"}, "vllm is no name"),
        ({"image": f"{NAME}@sha256:1"}, "is no name"),
        ({"image_build": Build("none")}, "there is no Dockerfile none"),
        ({"image_build": Build("", {"A": "1"})}, "it names no dockerfile"),
        ({"image_build": Build("vllm", {"HF_TOKEN": "x"})}, "HF_TOKEN looks like a secret"),
        # Of another Dockerfile: the old layers would get a new name.
        ({"image_build": Build("vllm", {"CACHEBUST_VLLM": "2"})}, "has no ARG CACHEBUST_VLLM"),
    ],
)
def test_what_cannot_be_built_is_refused(settings, found):
    given = {"runtime": "container", "image": NAME, "image_build": Build("vllm"), **settings}
    recipe, _findings = engine_recipe.find("qwen3-8b", ())
    settings = UserSettings(requirements=REQUIREMENTS, only_print=True, **given)
    made = engine_plan.plan(recipe, engine_plan.assumed_facts(["spark1"]), settings, {})
    assert [finding for finding in made.findings if found in finding.found]


def test_one_node_is_given_the_dockerfile_and_never_another_file(dockerfile):
    given = {"dockerfile": str(dockerfile), "arguments": {"A": 1}}
    image = image_build.name(NAME, image_build.parse(given))
    named = node_plans(2, runtime="container", image=image)
    plans = {host: replace(one, images=(Image(image),)).as_dict() for host, one in named.items()}
    seen = {host: {"ids": {}} for host in plans}
    gathered = {"plans": plans, "images": seen, "facts": dict.fromkeys(plans)}
    for options in (
        {"build": given},
        {"services": [{"name": "a"}, {"name": "b", "image_build": given}]},
        {"models": ["qwen3-235b-a22b-gptq-int4", {"recipe": "qwen3-235b-a22b-gptq-int4", "image_build": given}]},
    ):
        (only,) = plan("images", gathered, archive="", **options)["rounds"]
        assert only["offers"]["spark1"]["builds"] == {
            image: {"dockerfile": dockerfile.read_text(), "arguments": {"A": "1"}, "files": {}}
        }
    # What a node has kept of a plan names no file: only the inventory does.
    (only,) = plan("images", gathered, build={**given, "arguments": {"A": 2}})["rounds"]
    assert only["offers"]["spark1"]["builds"] == {} and only["offers"]["spark1"]["fetch"] == [image]


def test_a_service_with_an_image_of_its_own_builds_nothing():
    common = {"image": NAME, "image_build": {"dockerfile": "vllm"}}
    for values, wanted in (({}, "vllm"), ({"image": "x:1"}, ""), ({"image_build": {"dockerfile": "b"}}, "b")):
        made = services.over(common, services.Entry("a", (), 1.0, values))
        assert image_build.parse(made["image_build"]).dockerfile == wanted


def test_a_mod_brings_nothing_of_this_computer_that_is_not_in_it(tmp_path):
    (tmp_path / "key").write_text("PRIVATE")
    mod = tmp_path / "mod"
    (mod / "part").mkdir(parents=True)
    (mod / "run.sh").write_text("true\n")
    (mod / "same.sh").symlink_to("run.sh")
    (mod / "part" / "key").symlink_to(tmp_path / "key")
    build = Build(mods=(str(mod),), base="registry.example/engine:v1.0")
    with pytest.raises(SparkError, match="leads to"):
        image_build.files(build)
    (mod / "part" / "key").unlink()
    assert sorted(image_build.files(build)) == ["workspace/mods/mod/run.sh", "workspace/mods/mod/same.sh"]
    (mod / "large").write_text("x" * 2_000_000)
    with pytest.raises(SparkError, match="more than"):
        image_build.files(build)


def test_a_dockerfile_has_an_end(tmp_path):
    os.mkfifo(tmp_path / "waits")
    for path in ("/dev/zero", str(tmp_path / "waits"), str(tmp_path)):
        with pytest.raises(SparkError, match="it is no file"):
            image_build.read(Build(path))


def test_secrets_in_a_command_are_looked_for_in_no_time():
    began = time.process_time()
    assert list(own_command.secrets(["--a" * 100_000])) == []
    assert list(own_command.secrets(["x --api-key=abcdef"])) == ["api-key"]
    assert time.process_time() - began < 5
