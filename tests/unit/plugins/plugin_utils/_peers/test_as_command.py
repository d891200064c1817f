# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Recipes of others as they are: what becomes a place, what is named as lost, and what nobody has to see."""

import contextlib
import re
import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_command, planners, read
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs

RANKS = ["--nnodes", "@nodes@", "--node-rank", "@rank@", "--master-addr", "@head@", "--master-port"]
RANKS += ["@rendezvous_port@"]
IMAGE = "registry.example/engine@sha256:" + 64 * "a"


def taken(tmp_path, text, name="their.yaml"):
    """Document, everything said, and the recipe, which has to be one. Where the API listens has a test of its own."""
    document, said, recipe = taken_whole(tmp_path, text, name)
    for command in (document["command"], document.get("worker") or {}):
        words = command.get("words", [])
        if "@host@" in words and "--host" not in str(text):
            del words[words.index("@host@") - 1 : words.index("@host@") + 1]
    return document, said, recipe


def taken_whole(tmp_path, text, name="their.yaml"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False))
    peer = read.read(str(path))
    document = as_command.made(peer)
    recipe, findings = engine_recipe.parse(yaml.safe_load(as_command.printed(document)), str(path), "theirs")
    assert [str(finding) for finding in findings] == []
    return document, "\n".join(map(str, [*peer.losses, *peer.placed])), recipe


def translated(path, **options):
    given = {"path": str(path), "recipe_paths": [], "model_files": "", "save": "", "inventory": False}
    return planners.translate_recipe({**given, **options})


def sparkrun(**keys):
    command = "vllm serve {model} --port {port} -tp {tensor_parallel}"
    made = {"recipe_version": "2", "runtime": "vllm", "model": "a/b", "container": IMAGE, "command": command}
    return {**made, "defaults": {"port": 8000, "tensor_parallel": 1}, **keys}


def docker(command, options=""):
    return f"#!/bin/bash\ndocker run -d {options} \\\n  {IMAGE} {command}\n"


# --- what is the plan's ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve a/b", ["--host", "@host@"]),
        ("vllm serve a/b --host 0.0.0.0", ["--host", "@host@"]),
        ("vllm serve a/b --host=0.0.0.0", ["--host=@host@"]),
        ("sglang serve --model-path a/b", []),
    ],
)
def test_an_api_listens_where_the_plan_says(tmp_path, command, words):
    """vLLM's own choice is all addresses, others' this machine."""
    document, said, _recipe = taken_whole(tmp_path, {"model": "a/b", "container": IMAGE, "command": command})
    made = document["command"]["words"]
    assert made[len(made) - len(words) :] == words and " ".join(made).count("host") == 2 * bool(words)
    assert ("--host" in said) is bool(words)


@pytest.mark.parametrize(
    ("sizes", "nodes"), [("-tp 2", 2), ("-tp 2 -pp 3", 6), ("-pp=3", 3), ("--tensor-parallel-size 1", 1), ("", 1)]
)
def test_as_many_machines_as_its_sizes_take(tmp_path, sizes, nodes):
    document, _said, recipe = taken(
        tmp_path, {"model": "a/b", "container": IMAGE, "command": f"vllm serve a/b {sizes}"}
    )
    assert (recipe.min_nodes, recipe.max_nodes) == (nodes, nodes)
    words = document["command"]["words"]
    assert words == ["vllm", "serve", "@model@", *sizes.split(), *(RANKS if nodes > 1 else [])]
    assert document.get("worker", {}).get("words", []) == ([*words, "--headless"] if nodes > 1 else [])


@pytest.mark.parametrize(("tensor", "expert", "nodes"), [(1, 2, 2), (2, 2, 2), (2, 4, 8)])
def test_experts_of_atlas_may_be_on_the_machines_of_its_tensors(tmp_path, tensor, expert, nodes):
    text = sparkrun(runtime="atlas", defaults={"tensor_parallel": tensor, "ep_size": expert})
    del text["command"]
    document, said, recipe = taken(tmp_path, text)
    assert recipe.min_nodes == nodes and "replicas" not in said
    assert "@world" not in str(document)


def test_placement_becomes_places_and_all_else_stays(tmp_path):
    rank = "--nnodes 2 --node-rank $NODE_RANK --master-addr 192.168.7.1 --master-port 29501 --host 0.0.0.0 --port=8123"
    variables = "-e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_IB_HCA=rocep1s0f0 -e VLLM_HOST_IP=$HOST_IP -e NCCL_PROTO=LL"
    variables += " -e MASTER_ADDR=192.168.7.1 -e EMPTY= -e SEED=1"
    document, said, recipe = taken(tmp_path, docker(f"a/b -tp 2 {rank} --seed 1", variables), "their.sh")
    words = document["command"]["words"]
    assert words[:3] == ["@model@", "-tp", "2"]
    assert words[3:] == [*RANKS, "--host", "@host@", "--port=@port@", "--seed", "1"]
    assert document["environment"] == {"EMPTY": "", "MASTER_ADDR": "@head@", "NCCL_PROTO": "LL", "SEED": "1"}
    assert recipe.entrypoint and recipe.min_nodes == 2
    for left in ("NCCL_SOCKET_IFNAME=", "NCCL_IB_HCA=", "VLLM_HOST_IP=", "--master-addr 192.168.7.1"):
        assert left in said


def test_ray_between_ranks_is_the_engine_s_own_way(tmp_path):
    text = sparkrun(runtime="vllm-ray", command="vllm serve a/b -tp 2 --distributed-executor-backend ray")
    document, said, _recipe = taken(tmp_path, text)
    assert "ray" not in document["command"]["words"] and "--distributed-executor-backend ray: " in said
    assert "vllm-ray: " in said


@pytest.mark.parametrize(
    ("runtime", "command", "appended", "worker"),
    [
        ("sglang", "sglang serve --model-path a/b --tp 2", ["--dist-init-addr", "@head@:@rendezvous_port@"], []),
        ("sglang", "tensorfold serve a/b --tp 2", ["--rank", "@rank@", "--master", "@head@"], []),
        ("vllm", "vllm serve a/b -tp 2", RANKS[:4], ["--headless"]),
    ],
)
def test_each_engine_has_its_own_words_for_ranks(tmp_path, runtime, command, appended, worker):
    document, _said, _recipe = taken(tmp_path, sparkrun(runtime=runtime, command=command))
    words = document["command"]["words"]
    assert [word for word in appended if word not in words] == []
    assert document.get("worker", {}).get("words", words)[len(words) :] == worker


def test_a_launcher_of_their_own_is_told_its_rank(tmp_path):
    """Which engine it starts nobody here knows: sparkrun adds what its runtime takes, others have vLLM's words."""
    text = sparkrun(runtime="sglang", command="python3 /x/launcher.py --boot --tp 2", min_nodes=2)
    words = taken(tmp_path, text)[0]["command"]["words"]
    meet = ["--dist-init-addr", "@head@:@rendezvous_port@", "--nnodes", "@nodes@", "--node-rank", "@rank@"]
    assert words == ["python3", "/x/launcher.py", "--boot", "--tp", "2", *meet]
    rank = "--node-rank 0 --master-addr 192.0.2.1 --nnodes 2 --master-port 29778"
    document, said, recipe = taken(tmp_path, docker(f"python3 /x/tool.py serve a/b -s {rank}"), "their.sh")
    assert document["command"]["words"][5:] == [
        *("--node-rank", "@rank@", "--master-addr", "@head@", "--nnodes", "@nodes@"),
        *("--master-port", "@rendezvous_port@"),
    ]
    document, said, recipe = taken(
        tmp_path, docker(f"python3 /x/tool.py serve a/b --tensor-parallel-size 2 {rank}"), "their.sh"
    )
    assert recipe.min_nodes == 2 and document["worker"]["words"][-1] == "--headless"
    assert "--node-rank 0: which rank" in said


# --- the same words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "written", "meant"),
    [
        ("1", '{{"a":{{"n":{n}}}}}', '{"a":{"n":5}}'),
        ("2", '{{"a":{{"n":{n}}}}}', '{"a":{"n":5}}'),
        ("2", '{"a":{"n":{n}}}', '{"a":{"n":5}}'),
        ("1", '{"a":{"b":{"c":1}}}', '{"a":{"b":{"c":1}}}'),
    ],
)
def test_braces(tmp_path, version, written, meant):
    command = f"vllm serve a/b --hf-overrides '{written}'"
    document, said, _recipe = taken(tmp_path, sparkrun(recipe_version=version, command=command, defaults={"n": 5}))
    assert document["command"]["words"][-1] == meant
    assert ("doubled braces (--hf-overrides): " in said) == (version == "2" and "{{" in written)


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("export A=1\nvllm serve a/b --port 8000", "export A=1\nvllm serve a/b --port @port@\n"),
        ("taskset -c $CPUS vllm serve a/b", "taskset -c $CPUS vllm serve a/b\n"),
        ('vllm serve a/b --chat-template "${D:-/x}/y.jinja"', 'vllm serve a/b --chat-template "${D:-/x}/y.jinja"\n'),
        ("vllm serve a/b > /tmp/log", "vllm serve a/b > /tmp/log\n"),
    ],
)
def test_more_than_words_stays_the_text_of_a_shell(tmp_path, command, kept):
    document, _said, recipe = taken(tmp_path, sparkrun(command=command))
    assert document["command"]["words"] == ["bash", "-c", kept]
    assert recipe.model == "a/b"


@pytest.mark.parametrize("end", [" \\\n", " \\", "  \\  \n  --seed 1"])
def test_lines_that_go_on_as_their_tools_repair_them(tmp_path, end):
    document, _said, _recipe = taken(tmp_path, sparkrun(command=f"vllm serve a/b{end}"))
    assert document["command"]["words"] == ["vllm", "serve", "@model@", *end.replace("\\", " ").split()]


def test_variables_before_the_program_are_variables(tmp_path):
    document, _said, _recipe = taken(tmp_path, sparkrun(command="A=1 B='x y' vllm serve a/b"))
    assert document["environment"] == {"A": "1", "B": "x y"}
    assert document["command"]["words"] == ["vllm", "serve", "@model@"]


def test_without_a_command_by_the_tool_s_own_names(tmp_path):
    defaults = {"port": 8000, "tensor_parallel": 2, "max_model_len": "auto", "enable_prefix_caching": False}
    defaults |= {"trust_remote_code": False, "enforce_eager": True, "speculative_config": {"method": "mtp"}, "own": 3}
    text = sparkrun(defaults=defaults, model_revision="abc")
    document, said, recipe = taken(tmp_path, {key: value for key, value in text.items() if key != "command"})
    words = ["--revision", "abc", "-tp", "2", "--port", "@port@", "--max-model-len", "auto", "--enforce-eager"]
    words += ["--no-enable-prefix-caching", "--speculative-config", '{"method":"mtp"}']
    assert document["command"]["words"] == ["vllm", "serve", "@model@", *words, *RANKS]
    assert recipe.revision == "abc" and "own (3): sparkrun drops it" in said and "trust_remote_code (false)" in said


def test_an_engine_that_nobody_here_knows_is_taken(tmp_path):
    text = sparkrun(runtime="atlas", defaults={"tensor_parallel": 2, "max_model_len": 4096, "gdn_fused_norm": True})
    document, _said, _recipe = taken(tmp_path, {key: value for key, value in text.items() if key != "command"})
    assert document["command"]["words"][:6] == ["spark", "serve", "@model@", "--tp-size", "2", "--max-seq-len"]
    assert document["command"]["words"][7:9] == ["--gdn-fused-norm", "true"]


@pytest.mark.parametrize(
    ("command", "defaults", "served"),
    [
        ("vllm serve a/b", {}, "a/b"),
        ("vllm serve a/b --served-model-name one two", {}, "one"),
        ("vllm serve a/b", {"served_model_name": "theirs"}, "theirs"),
    ],
)
def test_the_name_for_clients_is_theirs(tmp_path, command, defaults, served):
    document, _said, _recipe = taken(tmp_path, sparkrun(command=command, defaults=defaults))
    assert document["served_model_name"] == served
    assert "--served-model-name" in document["command"]["words"] or served == "a/b"


# --- around the command -----------------------------------------------------------------------------------------------


def test_where_it_listens_is_the_plan_s_in_variables_too(tmp_path):
    made = {"SERVER_PORT": "{config.port}", "SIZE": "{config.tensor_parallel}", "PROFILE": "tp2-rocenante"}
    document, said, _recipe = taken(tmp_path, sparkrun(env=made))
    assert document["environment"] == {"SERVER_PORT": "@port@", "SIZE": "1", "PROFILE": "tp2-rocenante"}
    assert "names devices" not in said


def test_mods_beside_the_recipe_are_taken_and_others_named(tmp_path):
    (tmp_path / "mods/one").mkdir(parents=True)
    (tmp_path / "mods/one/run.sh").write_text("true\n")
    (tmp_path / "recipes").mkdir()
    text = {"model": "a/b", "container": "vllm-node", "mods": ["mods/one", "mods/two"], "command": "vllm serve a/b"}
    document, said, _recipe = taken(tmp_path, text, "recipes/their.yaml")
    assert document["build"] == {"mods": [str(tmp_path / "mods/one"), "mods/two"]}
    assert "mods (mods/two)" in said and "mods (mods/one)" not in said and "container (vllm-node)" in said


def test_commands_before_the_engine_run_before_it(tmp_path):
    document, said, _recipe = taken(tmp_path, sparkrun(pre_exec=["python3 /x.py", {"copy": "a", "dest": "/b"}]))
    text = document["command"]["words"][2]
    assert text.startswith("(\npython3 /x.py\n) || exit 1\n") and "vllm serve" in text
    assert "pre_exec: runs at the beginning" in said and "pre_exec (copy: a, dest: /b)" in said


def test_every_key_is_kept_or_named(tmp_path):
    keys = {"runtime_version": "x", "patches": ["p"], "variants": {"f": {}}, "draft_model": "a/d", "builder": "pull"}
    keys |= {"distribution_config": {"on": True}, "post_exec": ["true"], "metadata": {"layers": 2}, "of_tomorrow": 7}
    keys["executor_config"] = {"privileged": True, "shm_size": "1g", "volumes": ["/srv/x:/x"], "user": "1000"}
    document, said, _recipe = taken(tmp_path, sparkrun(**keys))
    assert [key for key in keys if key not in said and key != "executor_config"] == []
    assert [key for key in ("privileged", "shm_size", "user 1000") if key not in said] == []
    assert document["mounts"][0]["source"] == "/srv/x"


def test_only_the_head_of_tensorfold_has_an_address_for_clients(tmp_path):
    text = sparkrun(runtime="other", command="tensorfold serve a/b --tp 2 --host 0.0.0.0 --port 8080 --context 4096")
    document, _said, _recipe = taken(tmp_path, text)
    ranks = ["--rank", "@rank@", "--master", "@head@", "--master-port", "@rendezvous_port@"]
    head, rest = ["--host", "@host@", "--port", "@port@"], ["--context", "4096", *ranks]
    assert document["command"]["words"] == ["tensorfold", "serve", "@model@", "--tp", "2", *head, *rest]
    assert document["worker"]["words"] == ["tensorfold", "serve", "@model@", "--tp", "2", *rest]


@pytest.mark.parametrize(
    ("mount", "kept", "named"),
    [
        ("/srv/x:/x:ro", ("/srv/x", "/x", True), ""),
        ("$HOME/.cache/huggingface:/root/.cache/huggingface", None, "brings the models itself"),
        ("$DIR/y:/y", None, "mount $DIR/y:/y"),
        ("volume:/y", None, "a volume of Docker"),
        ("/usr/lib/x:/y", None, "can do what root can"),
    ],
)
def test_mounts_are_kept_or_named(tmp_path, mount, kept, named):
    document, said, _recipe = taken(tmp_path, docker("a/b", f"-v {mount}"), "their.sh")
    made = [(one["source"], one["target"], one["read_only"]) for one in document.get("mounts", [])]
    assert made == ([kept] if kept else []) and named in said


def test_models_are_where_a_command_looks_for_them(tmp_path):
    text = docker("--model /hf/cache/huggingface/hub/x --seed 1", "-v ~/hf:/hf/cache/huggingface -e HF_HOME=/hf")
    document, said, _recipe = taken(tmp_path, text, "their.sh")
    assert document["mounts"][0]["target"] == "/hf/cache/huggingface"
    assert document["mounts"][0]["source"] == as_command.MODELS and "HF_HOME=/hf" in said


@pytest.mark.parametrize(
    "text",
    [
        sparkrun(
            env={"HF_TOKEN": "hf_abcdefghijklmnopqrst"}, command="vllm serve a/b --api-key sk-abcdefghijklmnopqrst"
        ),
        sparkrun(command="export HF_TOKEN=hf_abcdefghijklmnopqrst\nvllm serve a/b --api-key=sk-abcdefghijklmnopqrst"),
        sparkrun(
            pre_exec=["HF_TOKEN=hf_abcdefghijklmnopqrst python3 x"], post_exec=["API_KEY=sk-abcdefghijklmnopqrst x"]
        ),
        docker("a/b --api-key 'sk-abcdefghijklmnopqrst'", "-e HF_TOKEN=hf_abcdefghijklmnopqrst -e WANDB_API_KEY"),
    ],
)
def test_secrets_are_named_and_nowhere_else(tmp_path, text):
    name = "their.yaml" if isinstance(text, dict) else "their.sh"
    document, said, _recipe = taken(tmp_path, text, name)
    lines = translated(tmp_path / name)["lines"]
    everything = as_command.printed(document) + said + str(lines)
    assert "abcdefghijklmnopqrst" not in everything and "HF_TOKEN=…" in said


# --- what comes next --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "where"),
    [({}, " -i inventories/1spark"), ({"inventory": True}, "")],
)
def test_a_recipe_that_was_written_is_planned_next(tmp_path, options, where):
    path = tmp_path / "their.sh"
    path.write_text(docker("vllm serve openai/gpt-oss-120b"))
    made = translated(path, save="/home/my own/mine.yml", **options)
    plan = f"ansible-playbook playbooks/plan.yml{where} -e engine_recipe="
    first, second = made["next"]
    assert first.endswith(f": {plan}'/home/my own/mine.yml' -e engine_allow=command")
    assert second.endswith(f": {plan}'/home/my own/mine-vllm.yml'")
    assert planners.NOT_KEPT not in made["lines"]
    unsaved = translated(path)
    assert unsaved["next"] == [] and unsaved["lines"][-1] == planners.NOT_KEPT
    path.write_text(docker("tensorfold serve --model some/unknown"))
    assert len(translated(path, save="mine.yml")["next"]) == 1


# --- Compose, scripts, environment files ------------------------------------------------------------------------------


def test_a_service_of_compose_with_its_values(tmp_path):
    (tmp_path / ".env").write_text("MODEL=a/b # text\nLENGTH='4096'\n")
    service = {
        "image": IMAGE,
        "entrypoint": [],
        "command": ["bash", "-lc", "vllm serve ${MODEL} -tp 2 --node-rank $${RANK} --max-model-len ${LENGTH:-1}"],
        "environment": ["A=${NONE:-x}", "NCCL_PROTO=LL", "HF_TOKEN"],
        "volumes": [{"type": "bind", "source": "/srv/x", "target": "/x", "read_only": True}],
        "restart": "always", "privileged": True, "x-own": 1,
        "healthcheck": {"test": ["CMD", "curl", "-f", "http://localhost:8000/v1/models"]},
    }  # fmt: skip
    other = {"image": "nginx:1", "command": "nginx"}
    document, said, recipe = taken(tmp_path, {"services": {"engine": service, "web": other}}, "compose.yaml")
    assert document["command"]["script"] == "vllm serve a/b -tp 2 --node-rank @rank@ --max-model-len 4096\n"
    assert document["worker"]["script"].rstrip().endswith("4096 --headless")
    assert document["environment"] == {"A": "x", "NCCL_PROTO": "LL"} and recipe.health == "/v1/models"
    assert "privileged: it would reach the node itself" in said and "HF_TOKEN=…" in said


def test_several_engines_in_one_compose_file_are_asked_about(tmp_path):
    one = {"image": IMAGE, "command": "vllm serve a/b"}
    text = yaml.safe_dump({"x-own": one, "services": {"x": one}})
    assert "&id001" in text and taken(tmp_path, text, "compose.yaml")[2].model == "a/b"
    with pytest.raises(SparkError, match="several services start an engine: x, y"):
        taken(tmp_path, {"services": {"x": one, "y": {**one, "command": "vllm serve c/d"}}}, "compose.yaml")
    assert read.read(f"{tmp_path}/compose.yaml#y").argv[-1] == "c/d"
    with pytest.raises(SparkError, match="it has no service z: x, y"):
        read.read(f"{tmp_path}/compose.yaml#z")


def test_a_script_with_its_variables_and_arrays(tmp_path):
    text = f'IMAGE={IMAGE}\nLEN="${{LEN:-4096}}"\nARGS=(--seed 1)\nARGS+=(--x "a b")\n# docker run nothing\n'
    text += 'docker run --rm --gpus=all --ipc host -it --entrypoint vllm "$IMAGE" serve a/b --max-model-len $LEN \\\n'
    text += '  "${ARGS[@]}" --port ${PORT:-8000} --open $OPEN\n'
    document, said, _recipe = taken(tmp_path, text, "their.sh")
    words = ["vllm", "serve", "@model@", "--max-model-len", "4096", "--seed", "1", "--x", "a b", "--port", "@port@"]
    assert document["command"]["words"] == [*words, "--open", "$OPEN"]
    assert "entrypoint" not in document and "$OPEN: the file gives it no value" in said
    assert document["hazards"] == ["no value yet for OPEN: write it where the name stands"]


def test_a_command_as_a_list_and_a_text_in_a_document_of_another_tool(tmp_path):
    document, _said, _recipe = taken(tmp_path, sparkrun(command=["vllm", "serve", "{model}", "--x", "a b", "{on}"]))
    assert document["command"]["words"] == ["vllm", "serve", "@model@", "--x", "a b", "{on}"]
    text = {"models": {"one": {"cmd": f"docker run {IMAGE} vllm serve a/b", "ttl": 1}}}
    assert taken(tmp_path, text)[0]["command"]["words"] == ["vllm", "serve", "@model@"]
    text["models"]["two"] = {"cmd": "docker run x/y vllm serve c/d"}
    with pytest.raises(SparkError, match="2 texts in it start an engine"):
        taken(tmp_path, text)


def test_the_file_of_a_worker_is_one_of_all_ranks(tmp_path):
    text = docker("vllm serve a/b -tp 2 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless")
    document, _said, _recipe = taken(tmp_path, text, "their.sh")
    words = ["vllm", "serve", "@model@", "-tp", "2", *RANKS[:6]]
    assert (document["command"]["words"], document["worker"]["words"]) == (words, [*words, "--headless"])


def test_what_is_not_known_is_said(tmp_path):
    document, said, _recipe = taken(tmp_path, sparkrun(command="uvicorn server:app --port 8000"))
    assert document["command"]["words"][-1] == "@port@" and "what uvicorn server:app answers to" in said
    _document, said, _recipe = taken(tmp_path, sparkrun(command="vllm serve a/b --data-parallel-size 2"))
    assert "2 replicas: sparkrun gives each" in said


def test_ranks_that_nobody_joins_are_said(tmp_path):
    command = "trtllm-serve a/b --tp_size {size} --trust_remote_code {on}"
    text = sparkrun(runtime="trtllm", command=command, defaults={"size": 2, "on": True}, pre_exec="x {size}")
    document, said, _recipe = taken(tmp_path, text)
    assert "how its 2 ranks meet" in said
    assert document["command"]["words"][2].endswith("--tp_size 2 --trust_remote_code True\n")
    assert "(\nx 2\n) || exit 1" in document["command"]["words"][2]


def test_the_line_of_a_page_and_texts_for_other_programs(tmp_path):
    page = f"Don't do\n\n```bash\ndocker run hello\n```\n\n```sh\ndocker run {IMAGE} vllm serve a/b\n```\nIt's it.\n"
    assert taken(tmp_path, page, "README.md")[0]["command"]["words"] == ["vllm", "serve", "@model@"]
    text = f"cat <<EOF > x\ndon't\nEOF\ndocker ps\ndocker run hello\ndocker run {IMAGE} vllm serve a/b\n"
    document, said, _recipe = taken(tmp_path, text, "their.sh")
    assert document["image"] == IMAGE and "1 more docker run line(s)" in said


def test_a_comment_that_cuts_a_command_off_is_said(tmp_path):
    text = f"docker run {IMAGE} a/b --seed 1 # text \\\n  --max-model-len 4096\n"
    document, said, _recipe = taken(tmp_path, text, "their.sh")
    assert document["command"]["words"][-1] == "1" and "--max-model-len 4096: a comment" in said


def test_an_environment_file_by_its_names(tmp_path):
    text = f"IMAGE={IMAGE}\nMODEL=a/b\nTP=2\nMAX_MODEL_LEN=4096\nENABLE_PREFIX_CACHING=false\nSERVE_ARGS=( --seed 1 )\n"
    text += "CONTAINER_ENV=( A=1 )\nVLLM_X=2\nWORKER_HOST=b\nHF_TOKEN=hf_abcdefghijklmnopqrst\nFLAVOUR=sweet\n"
    document, said, recipe = taken(tmp_path, text, "their.env")
    words = ["--tensor-parallel-size", "2", "--max-model-len", "4096", "--no-enable-prefix-caching", "--seed", "1"]
    assert document["command"]["words"] == ["vllm", "serve", "@model@", *words, *RANKS]
    assert document["environment"] == {"A": "1", "VLLM_X": "2"} and recipe.min_nodes == 2
    assert "FLAVOUR=sweet" in said and "WORKER_HOST=b" in said and "the order of its options" in said


def test_an_environment_file_with_its_compose_file(tmp_path):
    service = {"image": IMAGE, "command": "vllm serve ${MODEL} --seed ${SEED:-1}"}
    (tmp_path / "compose.yml").write_text(yaml.safe_dump({"services": {"engine": service}}))
    document, _said, _recipe = taken(tmp_path, "MODEL=a/b\nSEED=7\n", "head.env")
    assert document["command"]["words"] == ["vllm", "serve", "@model@", "--seed", "7"]


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("A=1\n", "their.env", "names no model to serve"),
        ("hello\n", "their.txt", "starts nothing that is known"),
        ("docker run --gpus all\n", "their.sh", "names no image"),
        (f"docker run {IMAGE} vllm serve $MODEL\n", "their.sh", r"which model it serves is not in it \(\$MODEL\)"),
        ("docker run --rm # text \\\n  --gpus all x/y vllm serve a/b\n", "their.sh", "cuts it off there"),
        ("services:\n  x: {image: a/vllm:1, command: bash -c 'ray start --block'}\n", "x.yaml", "Ray and no engine"),
        (f"docker run {IMAGE} vllm serve 'a\n", "their.sh", "a quote ' is not closed"),
        ("A=x\nB=$A$A$A$A$A$A$A$A\n" * 12, "their.env", "names no model"),
        ("A=xxxxxxxxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 12 + "MODEL=a/b\n", "their.env", "a word is too long"),
        ("x" * 1100000, "their.sh", "more than"),
    ],
)
def test_what_starts_nothing_is_refused_in_words(tmp_path, text, name, found):
    with pytest.raises(SparkError, match=found):
        taken(tmp_path, text, name)


def test_words_for_an_entrypoint_that_serves(tmp_path):
    text = "docker run vllm/vllm-openai:v0.33.0 serve a/b -tp 2 --port 8000\n"
    document, _said, recipe = taken(tmp_path, text, "their.sh")
    assert document["command"]["words"][:6] == ["serve", "@model@", "-tp", "2", "--port", "@port@"]
    assert (recipe.model, recipe.min_nodes, recipe.entrypoint) == ("a/b", 2, True)


def test_nothing_outside_of_its_folder_is_read(tmp_path):
    (tmp_path / "secret.env").write_text("A=1\n")
    (tmp_path / "in").mkdir()
    document, said, _recipe = taken(tmp_path, docker("a/b", "--env-file ../secret.env"), "in/their.sh")
    assert "environment" not in document and "variables of ../secret.env" in said


# --- files that are meant to do harm ---------------------------------------------------------------------------------

LINE = f"docker run --gpus all %s {IMAGE} vllm serve a/b\n"
OWN = "recipe_version: '1'\nmodel: a/b\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blank.env", "MODEL=a/b\n" + "\n" * 100_000 + "x"),
        ("open.env", "MODEL=a/b\n" + "source $(\n" * 20_000),
        ("itself.env", "MODEL=a/b\n" + ". ./itself.env\n" * 20_000),
        ("colons.sh", LINE % ("-v " + ":" * 60_000)),
        ("asks.sh", LINE % ("--health-cmd " + "localhost" * 7_000)),
        ("equals.sh", LINE % ("-e " + "a" * 30_000 + "-=" * 15_000)),
        ("comments.sh", "#\n" * 100_000 + LINE % ""),
        ("arrays.sh", 'A=("" "")\n' + 'A=("${A[@]}" "${A[@]}")\n' * 24 + LINE % ""),
        ("lists.sh", "A+=(x)\n" * 30_000 + LINE % ""),
        ("names.sh", LINE.strip() % "" + ' --a"' + "".join(f"$a{number}" for number in range(9_000)) + '"\n'),
        ("blanks.yaml", f'{OWN}command: "vllm serve a/b \\n{" " * 60_000}x"\n'),
        ("cut.yaml", f"{OWN}command: 'vllm serve a/b {chr(92) * 60_000}x'\n"),
        ("values.yaml", f"{OWN}command: vllm serve a/b {'{a}' * 20_000}\ndefaults:\n  a: {'x' * 60_000}\n"),
        ("keys.yaml", f"{OWN}command: vllm serve a/b\ndefaults:\n" + "".join(f"  k{one}: 1\n" for one in range(9_000))),
        ("lines.yaml", f'services:\n  a:\n    image: {IMAGE}\n    command: [bash, -c, "vllm serve a/b{chr(92)}n'
         + "\\n" * 30_000 + 'x"]\n'),
    ],
)  # fmt: skip
def test_no_file_of_others_takes_long_or_all_memory(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    began = time.process_time()
    with contextlib.suppress(SparkError):
        as_command.made(read.read(str(tmp_path / name)))
    assert time.process_time() - began < 5  # half a second; before, minutes or gigabytes


@pytest.mark.parametrize("value", ["x" * 100_000, "x" + " " * 300_000 + "y"])
def test_nor_do_the_variables_beside_it(tmp_path, value):
    (tmp_path / ".env").write_text(f"A={value}\n")
    command = '"vllm serve a/b ' + "${A}" * 15_000 + '"'
    (tmp_path / "compose.yml").write_text(f"services:\n  a:\n    image: {IMAGE}\n    command: {command}\n")
    began = time.process_time()
    with pytest.raises(SparkError, match="too long"):
        read.read(str(tmp_path / "compose.yml"))
    assert time.process_time() - began < 5


def test_a_mod_is_of_the_folders_around_its_recipe(tmp_path):
    folder = tmp_path / "a" / "b" / "c" / "d"
    for place in (folder, folder.parent / "mods" / "fix", tmp_path / "other"):
        place.mkdir(parents=True)
    for place in (folder.parent / "mods" / "fix", tmp_path / "other"):
        (place / "run.sh").write_text("true\n")
    (folder / "link").symlink_to(tmp_path / "other")
    mods = ["mods/fix", "link", "../../../../other", str(tmp_path / "other")]
    (folder / "own.yaml").write_text(yaml.safe_dump({**sparkrun(mods=mods), "recipe_version": "1"}))
    peer = read.read(str(folder / "own.yaml"))
    assert peer.mods == [str(folder.parent / "mods" / "fix"), *mods[1:]]
    assert sum(loss.what.startswith("mods (") for loss in peer.losses) == 3


def test_a_secret_for_a_build_is_not_written(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM scratch\nARG HF_TOKEN\nARG JOBS\n")
    build = {"context": ".", "args": {"HF_TOKEN": "hf_" + "a" * 34, "JOBS": 4}}
    services = {"a": {"build": build, "command": "vllm serve a/b", "image": IMAGE}}
    document, said, _recipe = taken(tmp_path, {"services": services}, "compose.yml")
    assert document["build"]["arguments"] == {"JOBS": "4"} and "HF_TOKEN=…" in said


def test_nothing_that_is_said_of_a_file_acts_on_a_terminal(tmp_path):
    options = '--foo "\x1b[2Jhidden\x9b" -v "/x\x1b[1A:/y"'
    (tmp_path / "a.sh").write_text(docker('vllm serve a/b --x "\x1b[31m"', options))
    told = translated(tmp_path / "a.sh")
    lines = [*told["lines"], *(line for one in told["recipes"] for line in one["text"].splitlines())]
    assert any("hidden" in line for line in lines) and [line for line in lines if not line.isprintable()] == []


@pytest.mark.parametrize(
    "text",
    [
        docker('bash -c "huggingface-cli login hf_{0} && vllm serve a/b"'),
        docker('bash -c "git clone https://me:{0}@example.org/x && vllm serve a/b"'),
        docker('vllm serve a/b --x \'{{"t": "hf_{0}"}}\'') + "--left hf_{0}\n",
        yaml.safe_dump(sparkrun(pre_exec=["login hf_{0}"], build_args=["A=hf_{0}"], description="by hf_{0}")),
    ],
)
@pytest.mark.parametrize("token", ["a1B2c3D4e5" * 3 + "f6G7", "aBcDeFgHiJ" * 3 + "kLmN"])
def test_a_token_is_found_by_its_look(tmp_path, text, token):
    path = tmp_path / ("a.yaml" if text.startswith("build") else "a.sh")
    path.write_text(text.replace("{0}", token))
    told = translated(path)
    whole = "\n".join([*told["lines"], *(one["text"] for one in told["recipes"]), str(told["recipes"])])
    assert token not in whole and "a token without a name" in whole


def test_a_folder_that_is_called_as_a_token_begins_stays(tmp_path):
    document, _said, _recipe = taken(
        tmp_path, docker("vllm serve a/b --x /srv/hf_cache_of_models1/hub --y eyJust_a_name")
    )
    assert document["command"]["words"][3:7] == ["--x", "/srv/hf_cache_of_models1/hub", "--y", "eyJust_a_name"]


def test_what_is_said_names_variables_and_verbs_that_there_are():
    root = Path(__file__).resolve().parents[5]
    defaults = yaml.safe_load((root / "roles/engine/defaults/main.yml").read_text())
    text = "\n".join(path.read_text() for path in Path(read.__file__).parent.glob("*.py"))
    variables = set(re.findall(r"\b(engine_(?:[a-z_]+_s|services|image\w*|gpu\w+))\b", text))
    assert len(variables) > 3 and variables <= set(defaults)
    spoken = set(re.findall(r"sparkmatrix (?!cluster)([a-z]+) has", text))
    assert spoken and spoken <= set(verbs.VERBS)
