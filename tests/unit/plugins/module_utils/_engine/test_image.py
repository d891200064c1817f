# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's image: Docker's answers, real ones of 26.1 and Compose 2.26 among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image_module
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Patch
from module_runner import run_call

ROOT = Path(__file__).resolve().parents[5]
NAME = "nvcr.io/nvidia/vllm:26.10-py3"
ABSENT = Completed(1, "[]\n", f"Error response from daemon: No such image: {NAME}\n")
INSPECTED = json.dumps(
    [
        {
            "Id": "sha256:7b32",
            "RepoTags": [NAME],
            "RepoDigests": ["nvcr.io/nvidia/vllm@sha256:77aa"],
            "Os": "linux",
            "Architecture": "arm64",
            "Size": 41345678,
        }
    ]
)


@pytest.fixture(autouse=True)
def _answers_are_kept_elsewhere(monkeypatch, tmp_path):
    for function in (engine_image_module.remembered, engine_image_module.note):
        monkeypatch.setattr(function, "__defaults__", (str(tmp_path), False))


class Docker:
    """docker with given answers by subcommand."""

    def __init__(
        self,
        server=Completed(0, "linux/arm64\n"),  # noqa: B008
        compose=Completed(0, "2.26.1-4\n"),  # noqa: B008
        image=ABSENT,
        pull=None,
        info="systemd\n",
    ):
        self.answers = {"version": server, "compose": compose, "image": image, "pull": pull, "info": Completed(0, info)}
        self.pulled = False

    def __call__(self, argv, timeout_s=0):
        assert argv[0] == "docker"
        if argv[1] == "pull":
            self.pulled = True
            self.answers["image"] = Completed(0, INSPECTED)
        return self.answers[argv[1]]


def test_an_image_that_is_there():
    image = engine_image_module.inspect(NAME, Docker(image=Completed(0, INSPECTED)))
    assert (image.id, image.platform) == ("sha256:7b32", "linux/arm64")
    assert engine_image_module.inspect(NAME, Docker()).id == ""


LAYERS = {"RootFS": {"Type": "layers", "Layers": ["sha256:l1", "sha256:l2"]}}


def content(**values):
    told = {**json.loads(INSPECTED)[0], **LAYERS, **values}
    return engine_image_module.inspect(NAME, Docker(image=Completed(0, json.dumps([told])))).content


def test_the_content_is_the_same_in_both_of_dockers_stores():
    # overlay2 names an image by its configuration, containerd's store by its manifest; after `docker load` one of them
    # has no digest. One leaves empty settings out.
    config = {"Env": ["PATH=/usr/bin"], "Entrypoint": ["/x"], "Cmd": None, "User": ""}
    ours = content(Config=config)
    short = {"Env": ["PATH=/usr/bin"], "Entrypoint": ["/x"], "Labels": {"a": "b"}}
    assert ours == content(Id="sha256:ffff", RepoDigests=[], Size=7, Config=short)
    others = [
        content(Config={**config, "Env": ["PATH=/evil"]}),
        content(Config={**config, "Cmd": ["x"]}),
        content(Config=config, Architecture="amd64"),
        content(Config=config, RootFS={"Layers": ["sha256:l2", "sha256:l1"]}),
    ]
    assert len({ours, *others}) == 5
    assert engine_image_module.inspect(NAME, Docker(image=Completed(0, INSPECTED))).content == "sha256:7b32"


@pytest.mark.parametrize("text", ["", "[]", "{}", "[{}]", "[null]", "no json"])
def test_a_damaged_answer(text):
    with pytest.raises(SparkError, match="damaged"):
        engine_image_module.inspect(NAME, Docker(image=Completed(0, text)))


def test_a_docker_that_does_not_answer():
    with pytest.raises(SparkError, match="Docker gives no information"):
        engine_image_module.inspect(NAME, Docker(image=Completed(1, "", "Cannot connect to the Docker daemon")))


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"server": Completed(127, "", "docker: No such file or directory")}, "Docker is not installed"),
        ({"server": Completed(1, "", "permission denied")}, "Docker does not answer .permission denied"),
        ({"info": "cgroupfs\n"}, "by cgroupfs and not by systemd"),
        ({"compose": Completed(1, "", "'compose' is not a docker command")}, "Compose plug-in is not there"),
        ({"compose": Completed(0, "v2.17.3\n")}, "is 2.17.3, and 2.20 is needed"),
    ],
)
def test_a_docker_that_cannot_be_used(answers, text):
    with pytest.raises(SparkError, match=text):
        engine_image_module.check_docker(Docker(**answers))


def test_the_module_looks_and_fetches_nothing(monkeypatch, tmp_path):
    docker = Docker()
    use(monkeypatch, docker)
    result, failed = run_call("image_look", {"images": [{"name": NAME}], "archive": str(tmp_path)})
    assert (failed, result["changed"], result["ids"][NAME], docker.pulled) == (False, False, "", False)
    assert (result["platform"], result["archive"]) == ("linux/arm64", False)
    docker = Docker(image=Completed(0, INSPECTED))
    use(monkeypatch, docker)
    (tmp_path / "a.tar").touch()
    result, failed = run_call("image_look", {"images": [{"name": NAME}], "archive": str(tmp_path / "a.tar")})
    assert (failed, result["changed"], result["ids"][NAME]) == (False, False, "sha256:7b32")
    assert (result["platforms"], result["archive"]) == ({NAME: "linux/arm64"}, True)


def use(monkeypatch, docker):
    for name in ("check_docker", "inspect", "find", "give_back"):
        monkeypatch.setattr(getattr(engine_image_module, name), "__defaults__", (docker,))


def test_of_another_platform_no_program_is_started(monkeypatch):
    use(monkeypatch, Docker(image=Completed(0, INSPECTED), server=Completed(0, "linux/amd64\n")))
    monkeypatch.setattr(engine_image_module, "ask", None)
    result, failed = run_call("image_look", {"images": [{"name": NAME, "ray": True, "nccl": True, "gpus": "all"}]})
    assert (failed, result["platforms"][NAME], result["platform"]) == (False, "linux/arm64", "linux/amd64")


PINNED = "nvcr.io:5000/nvidia/vllm:26.10@sha256:77aa"


def test_a_name_with_a_digest_is_a_tag_on_the_nodes(monkeypatch):
    local = "nvcr.io:5000/nvidia/vllm:sha256-77aa"
    assert engine_image_module.local_name(PINNED) == local
    assert engine_image_module.local_name("vllm@sha256:77aa") == "vllm:sha256-77aa"
    assert engine_image_module.local_name(NAME) == NAME
    docker = Store(**{PINNED: "sha256:1"})  # fetched by hand, or by an earlier release
    use(monkeypatch, docker)
    for changed in (True, False):
        result, failed = run_call("image_look", {"images": [{"name": PINNED}]})
        assert (failed, result["changed"], result["ids"], docker.names[local]) == (
            False,
            changed,
            {PINNED: "sha256:1"},
            "sha256:1",
        )
    del docker.names[PINNED]  # where it came from another node, Docker knows the tag only
    assert run_call("image_look", {"images": [{"name": PINNED}]})[0]["ids"] == {PINNED: "sha256:1"}


class Store:
    """docker with images by name and by id."""

    def __init__(self, **names):
        self.names = names

    def __call__(self, argv, timeout_s=0):
        if argv[1] in ("version", "compose", "info"):
            return Completed(0, {"info": "systemd\n", "compose": "2.26.1\n"}.get(argv[1], "linux/arm64\n"))
        if argv[1] == "tag":
            self.names[argv[3]] = argv[2]
            return Completed(0, "")
        found = self.names.get(argv[3], argv[3] if argv[3] in self.names.get("there", ()) else "")
        told = {"Id": found, "Os": "linux", "Architecture": "arm64"}
        return Completed(0, json.dumps([told])) if found else Completed(1, "", "No such image")


@pytest.mark.parametrize(
    ("names", "ids", "expected"),
    [
        ({NAME: "sha256:2", "there": ["sha256:1", "sha256:2"]}, {NAME: "sha256:1"}, "sha256:1"),
        ({NAME: "sha256:1", "there": ["sha256:1"]}, {NAME: "sha256:1"}, "sha256:1"),
        ({"there": ["sha256:1"]}, {NAME: "sha256:1"}, "sha256:1"),  # the name was taken away
        ({NAME: "sha256:2", "there": ["sha256:2"]}, {NAME: "sha256:1"}, "sha256:2"),  # it is gone
        ({NAME: "sha256:2", "there": ["sha256:1", "sha256:2"]}, {}, "sha256:2"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_an_image_of_before_gets_its_name_back(monkeypatch, names, ids, expected, check):
    docker = Store(**names)
    use(monkeypatch, docker)
    result, failed = run_call("image_look", {"images": [{"name": NAME}], "ids": ids}, check=check)
    assert (failed, result["changed"]) == (False, names.get(NAME, "") != expected)
    assert docker.names.get(NAME, "") == (names.get(NAME, "") if check else expected)
    assert check or result["ids"][NAME] == expected


def test_a_name_that_cannot_be_given_back():
    with pytest.raises(SparkError, match="cannot have it again"):
        engine_image_module.give_back(NAME, "sha256:1", lambda argv: Completed(1, "", "read-only"))


def test_what_cannot_be_fetched():
    docker = Docker(pull=Completed(1, "", "manifest unknown"))
    with pytest.raises(SparkError, match=r"cannot be fetched \(manifest unknown\).*engine_image_archive"):
        engine_image_module.pull(NAME, docker)


class Asked:
    """docker run with one answer; keeps what it was asked, and what was removed before and after."""

    def __init__(self, *answer):
        self.answer, self.argv, self.removed = Completed(*answer), [], 0

    def __call__(self, argv):
        if argv[1] == "rm":
            self.removed += 1
            return Completed(0)
        self.argv = argv
        return self.answer


def test_the_ray_of_an_image():
    docker = Asked(0, "ray, version 2.60.0\n")
    assert engine_image_module.ray_version(NAME, [Patch("/a", "/b")], docker) == "2.60.0"
    words = "docker run --rm --name sparkmatrix-question --memory 16g --network none"
    assert docker.argv[:9] == words.split()
    assert docker.removed == 2
    assert "type=bind,source=/a,target=/b,readonly" in docker.argv
    assert docker.argv[-4:] == ["--entrypoint", "ray", NAME, "--version"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            (127, "", 'exec: "ray": executable file not found in $PATH'),
            "no Ray starts in the image .*not found in .PATH",
        ),
        ((0, "usage: ray\n"), "no Ray starts in the image"),
        ((0, "ray, version 2.51.2\n"), "Ray 2.51.2 has no tokens.*engine_launch: native"),
        ((0, "ray, version 1.99\n"), "no tokens"),
    ],
)
def test_an_image_without_a_ray_that_knows_tokens(answer, text):
    with pytest.raises(SparkError, match=text):
        engine_image_module.ray_version(NAME, [], Asked(*answer))


def test_what_an_image_has_said_is_not_asked_again(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(engine_image_module, "check_docker", lambda: "")
    for function in ("find", "inspect"):
        monkeypatch.setattr(engine_image_module, function, lambda name: engine_image_module.Image(f"sha256:{name[-1]}"))
    monkeypatch.setattr(engine_image_module, "ray_version", lambda name, _p: asked.append(name) or "2.60.0")
    monkeypatch.setattr(engine_image_module, "nccl_version", lambda name: asked.append(f"nccl {name}") or "2.28.9")
    one = {"name": "img1", "ray": True, "nccl": True}
    run_call("image_look", {"images": [one]}, check=True)
    assert not any(tmp_path.iterdir())
    for _again in range(2):
        result, _failed = run_call("image_look", {"images": [one]})
        assert result["nccl"] == {"img1": "2.28.9"}
    assert asked == ["img1", "nccl img1"] * 2  # in check mode, and then once
    run_call("image_look", {"images": [{**one, "name": "img2"}]})
    assert asked[4:] == ["img2", "nccl img2"]
    # Files of the node over those of the image may be others tomorrow.
    for _again in range(2):
        run_call("image_look", {"images": [{**one, "patches": [{"source": "/a", "target": "/b"}]}]})
    assert asked[6:] == ["img1", "img1"]
    file = tmp_path / engine_image_module.ANSWERS.lstrip("/")
    file.write_text("[")
    run_call("image_look", {"images": [one]})
    assert asked[8:] == ["img1", "nccl img1"]
    assert engine_image_module.forget(str(tmp_path), check_mode=True) and file.exists()
    assert engine_image_module.forget(str(tmp_path)) and not file.exists()
    assert not engine_image_module.forget(str(tmp_path))


@pytest.mark.parametrize(
    ("answer", "version"),
    [((0, "noise\n23007\n"), "2.30.7"), ((0, "22809"), "2.28.9"), ((0, ""), ""), ((1, "23007"), ""), ((0, "2x"), "")],
)
def test_the_nccl_of_an_image(answer, version):
    assert engine_image_module.nccl_version(NAME, Asked(*answer)) == version


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((0, "GPU 0: NVIDIA GB10 (UUID: GPU-1)\n"), ""),
        ((0, "No devices found.\n"), "sees no GPU .No devices found"),
        ((125, "", "could not select device driver"), "sees no GPU .could not select.*engine_container_gpus"),
    ],
)
def test_a_container_sees_the_gpu(answer, text):
    docker = Asked(*answer)
    if text:
        with pytest.raises(SparkError, match=text):
            engine_image_module.check_gpu(NAME, "all", docker)
    else:
        assert engine_image_module.check_gpu(NAME, "cdi", docker) == "GPU 0: NVIDIA GB10 (UUID: GPU-1)"
        place = docker.argv.index("--device")
        assert docker.argv[place:] == ["--device", "nvidia.com/gpu=all", "--entrypoint", "nvidia-smi", NAME, "-L"]


def test_the_gpu_is_tried_once_for_each_driver(monkeypatch):
    asked, driver = [], ["580.1"]
    use(monkeypatch, Docker(image=Completed(0, INSPECTED)))
    monkeypatch.setattr(engine_image_module, "check_gpu", lambda name, gpus: asked.append(gpus) or "GPU 0")
    monkeypatch.setattr(engine_image_module, "driver", lambda: driver[0])
    for _again in range(2):
        run_call("image_look", {"images": [{"name": NAME, "gpus": "all"}]})
    assert asked == ["all"]
    driver[0] = "590.2"
    run_call("image_look", {"images": [{"name": NAME, "gpus": "all"}]})
    assert asked == ["all", "all"]


def test_the_version_of_the_driver(tmp_path):
    assert engine_image_module.driver(str(tmp_path)) == ""
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.142\n")
    assert engine_image_module.driver(str(tmp_path)) == "580.142"
