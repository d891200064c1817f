# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A recipe whose engine nobody knows, from its file to what lies on the nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Taken
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import image_build, own_command, services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose, service_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import FOREIGN, GPU, facts, required

DOCUMENT = {
    "model": "someone/fast",
    "engine": "command",
    "image": "example.org/engine@sha256:" + "a" * 64,
    "command": {
        "words": ["serve", "@model@", "--as", "@served@", "--at", "@host@:@port@", "--rank", "@rank@/@nodes@"],
    },
    "worker": {"script": "exec serve @model@ --join @head@:@rendezvous_port@ --on @address@/@interface@ $HOME %i {x}"},
    "environment": {"ME": "@address@", "PLAIN": "1", "VLLM_HOST_IP": "@address@"},
    "mounts": [{"source": "/opt/sparkmatrix/models/x/@rank@", "target": "/x", "why": "tables"}],
}


def planned(count=2, settings=None, **values):
    recipe = required(*engine_recipe.parse({**DOCUMENT, **values}, "own.yml", "own"))
    own = {"allow": ("command",), **(settings or {})}
    return engine_plan.plan(recipe, facts(count), UserSettings(**own), {})


def said(result):
    return "\n".join(map(str, result.findings))


def test_each_rank_runs_its_words_with_its_places_filled():
    result = planned()
    head, worker = (plan.here[0] for plan in result.plans.values())
    assert head.engine.command.words == [
        "serve",
        "someone/fast",
        "--as",
        "own",
        "--at",
        "127.0.0.1:8000",
        "--rank",
        "0/2",
    ]
    script = "exec serve someone/fast --join 192.168.100.10:29501 --on 192.168.100.11/enp1s0f0np0 $HOME %i {x}"
    assert worker.engine.command.words == ["bash", "-lc", script]
    assert [plan.engine.env["ME"] for plan in (head, worker)] == ["192.168.100.10", "192.168.100.11"]
    assert [plan.engine.env["NCCL_SOCKET_IFNAME"] for plan in (head, worker)] == ["if0", "if1"]
    assert [mount.source for mount in worker.mounts if mount.target == "/x"] == ["/opt/sparkmatrix/models/x/1"]
    assert (head.backend, head.runtime, head.engine.health, head.engine.key) == (
        "native",
        "container",
        "/health",
        False,
    )
    assert all(member.runs_here for member in head.members)
    assert [model.name for model in worker.models] == ["someone/fast"]


def test_the_plan_says_what_it_does_not_know():
    summary = "\n".join(planned().summary)
    assert "own on 2 machines; its memory is not known before its first start" in summary
    assert "Model: someone/fast with its own command" in summary
    assert "Not checked: the options of its own command" in summary
    printed = "\n".join(planned(settings={"only_print": True, "details": True}).summary)
    assert "how large they are its recipe does not say" in printed and "Command: serve someone/fast --as own" in printed
    assert "Command of the other nodes: bash -lc exec serve @model@ --join @head@" in printed


def test_it_needs_the_users_word_and_says_all_that_it_brings():
    result = planned(settings={"allow": ()}, build={"mods": ["/srv/mods/one"]})
    assert not result.plans
    assert "it sets command, which runs as root of a container on each of its nodes" in said(result)
    for part in (
        "an image built from example.org/engine@sha256",
        "with the mods /srv/mods/one",
        "the command serve @model@",
        "on workers a script of 1 line",
        "variables ME, PLAIN, VLLM_HOST_IP",
        "host files /opt/sparkmatrix/models/x/@rank@ (tables)",
    ):
        assert part in said(result)
    refused = said(result).splitlines()
    assert "     - an image built from" in said(result) and refused[0].endswith("-e engine_allow=command). It brings:")
    summary = planned().summary
    place = summary.index("This recipe brings, with your consent command:")
    assert summary[place + 2].startswith("  - the command serve @model@"), "each part on a line of its own"
    words = ["sh", "-c", "serve\n     - no host files"]
    forged = planned(settings={"allow": ()}, command={"words": words}, worker=None)
    assert "\n     - no host files" not in said(forged), "no line that a recipe writes itself"


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        ({"environment": {"HF_TOKEN": "hf_" + "a" * 34}}, {}, "HF_TOKEN looks like a secret"),
        ({"environment": {"VLLM_HOST_IP": "10.0.0.1"}}, {}, "VLLM_HOST_IP differs from node to node"),
        ({"environment": {"NCCL_IB_HCA": "@interface@"}}, {}, "the fabric of spark1 sets it to 'hca0'"),
        ({"command": {"words": ["serve", "--api-key", "abcdef123456"]}}, {}, "looks like a secret (api-key)"),
        ({"worker": {"script": "export HF_TOKEN=hf_" + "b" * 34 + "; serve"}}, {}, "looks like a secret (HF_TOKEN)"),
        ({"image": "example.org/engine:latest"}, {}, "is another image tomorrow"),
        ({"mounts": [{"source": "/home/me/x", "target": "/x", "why": "mine"}]}, {}, "it takes /home/me/x of the nodes"),
        (
            {"mounts": [{"source": "/opt/sparkmatrix/models/n", "target": "/etc/nccl.conf", "why": "n"}]},
            {},
            "its mount",
        ),
        ({}, {"runtime": "venv"}, "runs in a container, and not in a Python environment"),
        ({}, {"engine": "vllm"}, "own is a recipe for command, and vllm cannot serve it"),
        ({}, {"options": {"tp": 2}}, "tp would reach nothing"),
        ({"command": {"words": ["s"]}, "worker": None}, {"served_model_name": "x"}, "it has no @served@"),
        ({"build": {"mods": ["/no/such"]}}, {}, "the mod /no/such is no directory with a run.sh"),
        ({"draft": {"method": "mtp", "tokens": 1}}, {}, "its draft is mtp"),
    ],
)
def test_what_is_refused(values, settings, expected):
    result = planned(settings=settings, **values)
    assert not result.plans
    assert expected in said(result)


def test_a_variable_of_the_shell_is_no_secret():
    assert list(own_command.secrets(['serve --api-key "$KEY" --token-file /x', "A=@port@ HF_TOKEN=${T}"])) == []


def test_settings_that_reach_nothing_are_said():
    result = planned(settings={"context": 4096, "tensor_parallel_size": 2})
    assert result.plans
    assert "without engine_context, engine_tensor_parallel_size" in said(result)


def test_a_recipe_of_another_engine_is_no_command():
    recipe = required(*engine_recipe.find("qwen3-8b", ()))
    result = engine_plan.plan(recipe, facts(1), UserSettings(engine="command", allow=("command",)), {})
    assert "qwen3-8b is a recipe for vllm, and command cannot serve it" in said(result)


@pytest.mark.parametrize(
    ("values", "served"),
    [
        ({}, "own"),
        ({"served_model_name": "quick"}, "quick"),
        ({"command": {"words": ["s"]}, "worker": {"words": ["w"]}}, "someone/fast"),
        ({"command": {"words": ["s"]}, "worker": {"words": ["w"]}, "served_model_name": "quick"}, "quick"),
    ],
)
def test_the_name_for_clients(values, served):
    plan = planned(1, **values).plans["spark1"]
    assert plan.here[0].engine.served_model_name == served


GIB = 1024**3


def taken(gib, hosts=("spark1", "spark2"), image=DOCUMENT["image"]):
    return {host: (Taken("own", image, 2, (gib + number) * GIB),) for number, host in enumerate(hosts)}


def test_its_memory_is_known_once_it_has_served():
    memory = planned(settings={"taken": taken(80)}).plans["spark1"].here[0].memory
    assert (memory.verdict, memory.measured, memory.budget) == ("not computed", 81 * GIB, 0)
    assert "81.0 GiB of each machine, measured when it served" in planned(settings={"taken": taken(80)}).summary[0]
    for other in (taken(80, ("spark1",)), taken(80, image="example.org/other:1.0")):
        assert planned(settings={"taken": other}).plans["spark1"].here[0].memory.measured == 0


def two(share, **own):
    document = {**DOCUMENT, "min_nodes": 1}
    recipe = required(*engine_recipe.parse(document, "own.yml", "own"))
    small = {**FOREIGN, "weights_gb": 4}
    other = required(*engine_recipe.parse(small, "small.yml", "small"))
    settings = UserSettings(allow=("command",), **own)
    return [
        services.Service(services.Entry("own", ("spark1",), 0.5, {}), recipe, settings),
        services.Service(
            services.Entry("small", ("spark1",), share, {}),
            other,
            UserSettings(requirements=GPU, port=8001, served_model_name="small"),
        ),
    ]


def beside(share, **own):
    return services.plan(two(share, **own), facts(1), {}, given=2)


def test_that_it_would_fit_beside_another_is_not_told():
    own, small = two(1.0)
    small = replace(small, settings=replace(small.settings, port=own.settings.port))
    for service, model in ((own, small), (small, own)):
        summary = services.plan([service], facts(1), {}, models=[model]).summary
        assert "by its name" in summary[-1]  # and nothing after that


def test_others_beside_it_have_what_it_leaves():
    assert "what it takes of spark1 is not known before its first start, and 1 other service" in said(beside(0.5))
    one = {"spark1": (Taken("own", DOCUMENT["image"], 1, 40 * GIB),)}
    assert not beside(0.5, taken=one).findings
    much = {"spark1": (Taken("own", DOCUMENT["image"], 1, 100 * GIB),)}
    refused = beside(0.5, taken=much)
    assert not refused.plans and "its services take more than its" in said(refused) and "own 100.0" in said(refused)


def rendered(**values):
    service = planned(**values).plans["spark2"].here[0]
    return compose.document(service)["services"]["engine"]


def test_the_container_runs_the_words_or_what_the_image_has():
    made = rendered(worker={"words": ["serve", "--a", "1"]})
    assert (made["entrypoint"], made["command"]) == (["serve"], ["--a", "1"])
    made = rendered(worker={"words": ["--a", "1"]}, entrypoint=True)
    assert "entrypoint" not in made and made["command"] == ["--a", "1"]
    made = rendered(command={}, worker=None, entrypoint=True)
    assert not {"entrypoint", "command"} & set(made)


def test_dollars_stay_what_they_are():
    service = planned().plans["spark2"].here[0]
    files = service_files.make(service, planned().plans["spark2"].ray, service_files.Settings(), service_files.Marks())
    document = yaml.safe_load(files.files[service.names.compose_file])
    assert document["services"]["engine"]["command"][1].endswith("$$HOME %i {x}")


def test_a_port_of_its_own(monkeypatch):
    entry = services.Entry(services.ALONE, (), 1.0, {})
    recipe = required(*engine_recipe.parse({**DOCUMENT, "port": 8001}, "own.yml", "own"))
    monkeypatch.setattr(engine_recipe, "find", lambda *_args: (recipe, []))
    arguments = {**{name: spec.get("default") for name, spec in services.SPEC.items()}, "recipe": "own"}
    made, findings = services.service(entry, {**arguments, "recipe_paths": [], "services": []}, {})
    assert not findings and made.settings.port == 8001


@pytest.fixture
def mods(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "run.sh").write_text(f"#!/bin/bash\necho {name}\n")
    (tmp_path / "one/sub/fix.patch").write_text("--- a\n")
    (tmp_path / "own.yml").write_text(
        yaml.safe_dump({**DOCUMENT, "build": {"mods": ["two", "./one"]}}), encoding="utf-8"
    )
    return tmp_path


def test_mods_are_beside_the_recipe_and_make_another_image(mods):
    recipe = required(*engine_recipe.read(mods / "own.yml"))
    build = recipe.own_build
    assert build.mods == (str(mods / "two"), str(mods / "one"))
    text = image_build.read(build)
    assert text.startswith(f"FROM {DOCUMENT['image']}\n")
    assert text.index("mods/two &&") < text.index("mods/one &&")
    assert image_build.files(build)["workspace/mods/one/sub/fix.patch"] == "--- a\n"
    result = engine_plan.plan(recipe, facts(1), UserSettings(allow=("command",)), {})
    image = result.plans["spark1"].here[0].image
    assert image.startswith("sparkmatrix/own:own-") and image_build.of(image, [build]) == build
    (mods / "one/sub/fix.patch").write_text("--- b\n")
    assert image_build.of(image, [build]) is None
    # Who names an image has what he names.
    other = UserSettings(allow=("command",), image="example.org/mine:1.0")
    assert engine_plan.plan(recipe, facts(1), other, {}).plans["spark1"].here[0].image == "example.org/mine:1.0"


def test_mods_on_a_dockerfile_and_what_is_no_mod(mods):
    (mods / "Dockerfile").write_text("FROM scratch\nARG A\n")
    build = image_build.Build(str(mods / "Dockerfile"), {"A": "1"}, (str(mods / "one"),))
    assert image_build.read(build).startswith("FROM scratch\nARG A\nUSER 0\nCOPY workspace/mods /workspace/mods\nRUN ")
    (mods / "one/x.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(Exception, match="no text that can be read"):
        image_build.files(build)
    with pytest.raises(Exception, match="that of another one"):
        image_build.files(replace(build, mods=(str(mods / "two"), str(mods / "two"))))


def test_the_example_of_the_guide_is_planned():
    guide = (Path(engine_recipe.SHIPPED).parents[3] / "docs/recipes.md").read_text(encoding="utf-8")
    (text,) = [one for one in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "engine: command" in one]
    recipe = required(*engine_recipe.parse(yaml.safe_load(text), "guide.yml", "guide"))
    result = engine_plan.plan(recipe, facts(2), UserSettings(allow=("command",)), {})
    words = [plan.here[0].engine.command.words for plan in result.plans.values()]
    assert [" ".join(one[3:13]) for one in words] == [
        f"--tp 2 --rank {rank} --master 192.168.100.10 --master-port 29501 --name glm-5.3-flash" for rank in (0, 1)
    ]
    assert result.plans["spark1"].here[0].not_pinned == ()


HOME = "/opt/sparkmatrix/models/huggingface"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ([(f"/{HOME}/hub", True)], f"it mounts {HOME}/hub"),
        ([(f"{HOME}/hub", True)], f"it mounts {HOME}/hub, which is below {HOME}"),
        ([(f"{HOME}/../huggingface/hub", True)], f"it mounts {HOME}/hub"),
        ([("/opt/sparkmatrix/models/a", False), ("/opt/sparkmatrix/models/a/b", True)], "which is below"),
        ([("/opt/sparkmatrix/models", False)], "it may write to /opt/sparkmatrix/models"),
        ([("/opt/sparkmatrix/models", True)], ""),
        ([(HOME, False)], ""),
        ([("/opt/sparkmatrix/models/a", True), ("/opt/sparkmatrix/models/a/b", True)], ""),
    ],
)
def test_no_mount_is_where_a_container_could_have_put_a_link(mounts, expected):
    made = [
        {"source": source, "target": f"/t{number}", "read_only": read_only, "why": "x"}
        for number, (source, read_only) in enumerate(mounts)
    ]
    result = planned(settings={"mount_directories": ("/opt/sparkmatrix/models",)}, mounts=made)
    assert bool(result.plans) is not bool(expected)
    assert expected in said(result)


def test_what_root_notes_of_the_models_is_in_no_mount_of_them():
    made = planned(model="/opt/sparkmatrix/models/x", mounts=[
        {"source": f"{HOME}/", "target": "/theirs", "read_only": False, "why": "where its command looks"}
    ])  # fmt: skip
    (service,) = next(iter(made.plans.values())).here
    assert compose.document(service)["services"]["engine"]["tmpfs"] == ["/theirs/sparkmatrix:ro"]


@pytest.mark.parametrize("source", ["//etc", "/x/../etc", "/", "//", "/var", "/var/lib", "/root", "/etc/", "/run/x"])
def test_no_spelling_and_no_folder_around_it_mounts_what_is_root(source):
    mounts = [{"source": source, "target": "/x", "why": "x"}]
    recipe, findings = engine_recipe.parse({**DOCUMENT, "mounts": mounts}, "own.yml", "own")
    assert recipe is None and "a container can do what root can" in str(findings[0])
    named = [{"source": "@model@", "target": "/x", "why": "x"}]
    result = planned(settings={"mount_directories": ("/",)}, model=source, mounts=named)
    assert not result.plans and f"it mounts {own_command.plain(source)}, with" in said(result)


def test_a_place_does_not_lead_out_of_a_folder():
    mounts = [{"source": "/opt/@model@/../../x", "target": "/x", "why": "x"}]
    recipe, findings = engine_recipe.parse({**DOCUMENT, "mounts": mounts}, "own.yml", "own")
    assert recipe is None and "Write a path that leads nowhere else (..)" in str(findings[0])


def test_consent_names_what_a_build_is_given_and_says_nothing_to_the_terminal(tmp_path):
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM $BASE\n")
    build = {"dockerfile": str(tmp_path / "Dockerfile"), "arguments": {"BASE": "example.org/other:v1.0"}}
    command = {"words": ["serve", "\x1b[2J"]}
    result = planned(settings={"allow": ()}, image="", build=build, command=command, worker=None)
    assert "Dockerfile with BASE=example.org/other:v1.0" in said(result) and "\x1b" not in said(result)
    shown = planned(command=command, worker=None).summary
    place = shown.index("This recipe brings, with your consent command:")
    assert all(line.isprintable() for line in shown[place : place + 6])


@pytest.mark.parametrize(("told", "expected"), [(2**63 - 1, "not known"), (50 << 30, "60.0 GiB of each machine")])
def test_a_node_that_took_more_than_it_has_is_not_believed(told, expected):
    taken = {
        host: (Taken("own", DOCUMENT["image"], 2, size),) for host, size in (("spark1", 60 << 30), ("spark2", told))
    }
    assert expected in planned(settings={"taken": taken}).summary[0]


def test_how_long_it_loads_is_not_guessed():
    """The table of loaders is of engines that are known."""
    (line,) = [one for one in planned(settings={"only_print": True}, weights_gb=180.0).summary if "First run" in one]
    assert "180 GB to download" in line and "known after its first start" in line and "GB/s" not in line
