# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Images of a node: what needs them, and how one goes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import image_list
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Image, NodePlan

NOW, BEFORE, OLD, MOVED, WEB, OTHER = (f"sha256:{number * 64}" for number in "123456")
PINNED = f"vllm@{OTHER}"
IMAGES = {
    NOW: ["vllm:2"],
    BEFORE: ["vllm:1"],
    OLD: ["vllm:0"],
    MOVED: [],  # vllm:2 meant this one when the plan before served
    WEB: ["webui:main"],
    OTHER: [engine_image.local_name(PINNED), "mine:1"],
}


class Docker:
    """docker with images by id, and one container."""

    def __init__(self, images=None, answers=True):
        self.images = {own: list(names) for own, names in (IMAGES if images is None else images).items()}
        self.answers = answers

    def __call__(self, argv):
        what, verb, *words = argv[1:]
        if not self.answers:
            return Completed(1, "", "Cannot connect to the Docker daemon")
        if (what, verb) == ("image", "ls"):
            return Completed(0, "\n".join([*self.images, *list(self.images)[:1]]))  # once for each name
        if (what, verb) == ("container", "ls"):
            return Completed(0, "c1\n")
        if what == "container":
            told = {"Id": "c1", "Name": "/web", "Image": "sha256:0", "Config": {"Image": "webui:main"}}
            return Completed(0, json.dumps([{**told, "State": {"Status": "exited"}}]))
        if verb == "inspect" and words[0] == "--format":
            own = self.images.get(words[2])
            return Completed(1, "", "No such image") if own is None else Completed(0, json.dumps(own))
        if verb == "inspect":
            keys = ("Id", "RepoTags", "RepoDigests", "Size")
            return Completed(0, json.dumps([dict(zip(keys, (own, self.images[own], None, 7))) for own in words]))
        return self.rm(words[0])

    def rm(self, name):
        if name == "webui:main":
            return Completed(1, "", "conflict: unable to remove, container c1 is using it")
        if self.images.get(name) == []:
            del self.images[name]
            return Completed(0)
        for names in self.images.values():
            if name in names:
                names.remove(name)
                return Completed(0)
        return Completed(1, "", f"No such image: {name}")


def plan_of(*names, ids=None):
    return replace(NodePlan("spark1"), images=tuple(Image(name) for name in names), image_ids=ids or {})


KEPT = Kept(plan_of("vllm:2"), plan_of("vllm:1", "vllm:2", PINNED, ids={"vllm:2": MOVED}))


def test_what_needs_an_image(tmp_path):
    engine_image.note(OLD, "vllm:0", str(tmp_path))
    engine_image.note(OLD, PINNED, str(tmp_path), check_mode=True)
    found, problem = image_list.listed(KEPT, Docker(), str(tmp_path))
    assert problem == ""
    assert {image.id: image.why for image in found} == {
        NOW: "serves now",
        BEFORE: "served before",
        OLD: "",
        MOVED: "served before",
        WEB: "needed by container web (exited)",
        OTHER: "served before",
    }
    assert {image.id: image.known for image in found if image.known} == {OLD: ("vllm:0",)}
    assert next(image for image in found if image.id == OLD).used_at % 86400 == 0
    engine_image.note(OLD, PINNED, str(tmp_path))
    engine_image.remembered(OLD, "ray", lambda: {"version": "2.60.0"}, str(tmp_path))
    assert set(engine_image.known(str(tmp_path))[OLD]) == {"used", "ray"}
    found, _problem = image_list.listed(Kept(None, None), Docker(), str(tmp_path))
    assert next(image for image in found if image.id == OLD).known == ("vllm:0", engine_image.local_name(PINNED))


def test_a_node_without_docker_has_no_images():
    assert image_list.listed(KEPT, lambda _argv: Completed(NOT_FOUND)) == ([], "")
    assert "Docker does not answer (Cannot connect" in image_list.listed(KEPT, Docker(answers=False))[1]
    assert "cannot be read" in image_list.listed(KEPT, lambda _argv: Completed(0, "x"))[1]


@pytest.mark.parametrize(
    ("image", "names", "left"),
    [
        (OLD, ["vllm:0"], None),
        (MOVED, [], None),
        (OTHER, [engine_image.local_name(PINNED)], ["mine:1"]),  # somebody else has named it, too
        (OTHER, ["gone:1"], [engine_image.local_name(PINNED), "mine:1"]),
    ],
)
def test_an_image_goes_with_its_last_name(image, names, left):
    docker = Docker()
    image_list.remove(image, names, docker)
    assert docker.images.get(image) == left
    assert len(docker.images) == len(IMAGES) - (left is None)


def test_what_another_image_was_built_on_stays():
    docker = Docker({OLD: []})
    docker.rm = lambda name: Completed(1, "", f"conflict: unable to delete {name} - image has dependent child images")
    image_list.remove(OLD, [], docker)


def test_what_a_container_needs_stays():
    docker = Docker()
    with pytest.raises(SparkError, match="does not remove it"):
        image_list.remove(WEB, ["webui:main"], docker)
    assert docker.images[WEB] == ["webui:main"]


def test_a_check_removes_nothing(monkeypatch, tmp_path):
    removed = []
    monkeypatch.setattr(image_list, "remove", lambda image, names: removed.append((image, *names)))
    asked = {"home": str(tmp_path), "images": [{"id": OLD, "names": ["vllm:0"]}]}
    for check, gone in ((True, []), (False, [(OLD, "vllm:0")])):
        assert calls.run("models_remove", asked, check) == {"changed": True}
        assert removed == gone
