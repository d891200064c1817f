# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import start_times
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.start_times import Told

# vLLM 0.26 on an H200, one rank, as `journalctl -a -o short-monotonic` prints it; its units ran at second 39.8.
JOURNAL = (Path(__file__).parents[3] / "fixtures/journal_of_a_start.txt").read_bytes().decode()
UNITS_RAN, FIRST_TOKEN = 39.8, 172.28
# vLLM 0.32: one process; two ranks with a drafter, on GPUs; the workers of Ray.
ONE = """\
(APIServer pid=5300) INFO 11-23 22:00:01 [api_utils.py:339] version 0.32.0
(Worker pid=5380) INFO 11-23 22:00:19 [base_loader.py:82] Initializing model took 1.202849 seconds
(Worker pid=5380) INFO 11-23 22:00:19 [default_loader.py:501] Loading weights took 0.54 seconds
(Worker pid=5380) INFO 11-23 22:00:27 [cpu_model_runner.py:87] Warming up model for the compilation...
(EngineCore pid=5370) INFO 11-23 22:00:57 [core.py:394] init engine (profile, create kv cache, warmup model) took \
38.21 s (compilation: 21.40 s)
"""
RANKS = """\
(Worker_TP0 pid=34322) INFO 11-23 20:59:57 [default_loader.py:501] Loading weights took 24.84 seconds
(Worker_TP1 pid=34323) INFO 11-23 20:59:58 [default_loader.py:501] Loading weights took 26.01 seconds
(Worker_TP1 pid=34323) INFO 11-23 20:59:59 [default_loader.py:501] Loading weights took 2.00 seconds
\x1b[0;36m(Worker_TP0 pid=34322)\x1b[0;0m INFO 11-23 20:59:59 [gpu_model_runner.py:5150] Model loading took 12.66 GiB \
memory and 31.657031 seconds
(EngineCore pid=7) INFO 11-23 21:01:00 [core.py:386] init engine (profile, create kv cache, warmup model) took 60.00 s \
(compilation: 40.00 s — language_model: 30.00 s, encoder: 10.00 s)
"""
RAY = """\
(EngineCore pid=7) (RayWorkerProc pid=4194, ip=10.100.0.2) INFO 11-23 21:00:00 [default_loader.py:501] Loading \
weights took 80.10 seconds
(EngineCore pid=7) INFO 11-23 21:01:00 [core.py:403] init engine (profile, create kv cache, warmup model) took 9.50 s
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (JOURNAL, Told(4.838451, 50.86, 29.12, "", began=112.560859, stage="warm")),
        (ONE, Told(0.54, 38.21, 21.4, stage="loaded")),
        (RANKS, Told(31.657031, 60.0, 40.0, stage="loaded")),
        (RAY, Told(80.1, 9.5, stage="loaded")),
        ("", Told()),
        # Of a user, or of another program: not a whole line of vLLM's.
        ("a prompt: Loading weights took 1.00 seconds", Told()),
        ("INFO 11-23 21:00:00 [default_loader.py:501] Loading weights took 1.00 seconds, or so", Told(stage="start")),
        ("INFO 11-23 21:00:00 [default_loader.py:501] Loading weights took -1.00 seconds", Told(stage="start")),
        (
            "INFO 11-23 21:00:00 [core.py:1] init engine (profile, create kv cache, warmup model) took nan s",
            Told(stage="start"),
        ),
    ],
)
def test_what_the_engine_says(text, told):
    assert start_times.parse(text.splitlines()) == told


@pytest.mark.parametrize(
    ("second", "stage"), [(59, ""), (60, "start"), (112, "start"), (113, "read"), (116.3, "read"), (117, "loaded"),
                          (148, "loaded"), (149, "warm"), (170, "warm")]
)  # fmt: skip
def test_what_the_engine_does_by_its_last_telling_line(second, stage):
    lines = JOURNAL.split("\n")[:-1]
    assert start_times.parse([line for line in lines if float(line[1:13]) <= second]).stage == stage


BEGUN = {
    # 0.33, two ranks; what Ray passes on; where only the progress is known.
    "(Worker_TP0 pid=9) INFO 11-23 22:00:19 [gpu_model_runner.py:4979] Starting to load model /m...",
    "(EngineCore pid=7) (RayWorkerProc pid=4, ip=10.100.0.2) INFO 11-23 22:00:19 [model_runner.py:399] Loading model"
    " from scratch...",
    "(EngineCore pid=7) \rLoading safetensors checkpoint shards:   0% Completed | 0/5 [00:00<?, ?it/s]",
}


@pytest.mark.parametrize("line", sorted(BEGUN))
def test_the_first_line_of_a_load_ends_the_start_of_processes(line):
    journal = f"[ 70.000000] spark1 vllm[8]: {line}\n[ 90.000000] spark1 vllm[8]: {line}\n"
    found = start_times.parse(journal.splitlines())
    assert (found.began, found.stage) == (70.0, "read")


@pytest.mark.parametrize("where", ["CPU", "GPU", "GPU + host"])
def test_memory_for_the_cache_is_known_when_all_ranks_have_their_weights(where):
    said = f"{where} KV cache size: 271,264 tokens, Maximum concurrency for 32,768 tokens per request: 8.28x"
    line = f"(EngineCore pid=7) INFO 11-23 22:00:19 [kv_cache_utils.py:1147] {said}"
    assert start_times.parse([line]).stage == "warm"


def test_the_journal_of_this_start_alone_is_read():
    asked = []

    def runner(argv):
        asked.append(argv)
        return Completed(0, JOURNAL)

    assert start_times.read("e.service", "i1", runner).weights == 4.838451
    assert asked[0][1:3] == ["_SYSTEMD_INVOCATION_ID=i1", "_SYSTEMD_UNIT=e.service"]
    assert asked[0][-3:] == ["-a", "-o", "short-monotonic"]  # -a: progress is no printable text
    assert start_times.read("e.service", "i1", lambda _argv: Completed(1, ONE)) == Told()
    assert start_times.read("e.service", "", runner) == start_times.read("", "i1", runner) == Told()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("line", "loader"),
    [
        ("Loading safetensors using Fastsafetensor loader:   2% Completed | 1/42 [00:03<02:41,  3.93s/it]", "fast"),
        ("(Worker_TP0 pid=191) Loading safetensors using InstantTensor loader:   6% Completed | 7/12 [", "instant"),
        ("\rLoading safetensors using Runai Model Streamer: 100% Completed | 7/7 [", "runai"),
        ("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:17<00:00, 17.53s/it]", ""),
        ("a prompt: Loading safetensors checkpoint shards: 100%", None),
    ],
)
def test_the_loader_is_known_by_its_progress(line, loader):
    found = start_times.parse([line, "Loading safetensors checkpoint shards: 0% of the draft"]).loader
    assert found == "" if loader is None else (found or "").startswith(loader)


GB = 10**9
NFS = "30 1 0:4 / / rw - ext4 /dev/x rw\n44 30 0:5 / /models rw - nfs4 nas:/models rw\n"


@pytest.mark.parametrize(
    ("load", "changes", "said"),
    [
        ((0.0, "", 0), {}, ""),
        ((50.0, "", 0), {"weights_bytes": GB}, ""),
        ((50.0, "", 66 * GB), {}, "weights at 1.34 GB/s"),
        ((100.0, None, 0), {}, "weights at 0.67 GB/s"),
        ((200.0, "", 66 * GB), {}, "weights at 0.34 GB/s; a fast loader reads sooner (docs/tasks/change-model.md)"),
        ((550.0, "", 0), {}, "weights at 0.12 GB/s, where others have 0.33: the disk was slow or busy (iostat -x 2"
                           " while it loads shows it)"),
        ((550.0, "", 20 * GB), {}, "weights at 0.12 GB/s, where others have 0.33, though most came from memory (page"
                                 " cache): processors or the memory were busy"),
        ((550.0, "", 0), {"model_directory": "/models/hub"}, "weights at 0.12 GB/s, where others have 0.33: the model"
         " is on another machine's disk (nfs4); copy it to this one's (docs/artifacts.md)"),
        ((550.0, "", 0), {"load_gb_per_s": 0.0}, "weights at 0.12 GB/s; a fast loader reads sooner"
                                               " (docs/tasks/change-model.md)"),
        ((50.0, "", 0), {"load_format": "instanttensor"}, "weights at 1.34 GB/s: the loader instanttensor was asked"
                                                        " for, and the usual one was used"),
        ((50.0, "instanttensor", 0), {"load_format": "instanttensor"}, "weights at 1.34 GB/s"),
        ((50.0, "", 0), {"load_format": "safetensors"}, "weights at 1.34 GB/s"),
    ],
)  # fmt: skip
def test_a_start_says_how_fast_it_read_and_what_was_wrong(tmp_path, load, changes, said):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(NFS)
    values = {"weights_bytes": 67 * GB, "load_gb_per_s": 0.33, "model_directory": "/var/lib/models", **changes}
    plan = Description(host="h", port=1, model="m", key_file="", units=(), members=(), **values)
    assert start_times.loaded(*load, plan, Machine(str(tmp_path))) == said


SEEN = {"stop": 3.04, "memory": 0.0, "ranks": 1.0, "load": 100.0}


@pytest.mark.parametrize(
    ("told", "parts", "words"),
    [
        (
            Told(40.0, 30.0, 20.0, began=1025.0),
            {
                "stop": 3.0,
                "memory": 0.0,
                "ranks": 1.0,
                "processes": 25.0,
                "weights": 40.0,
                "compile": 20.0,
                "warm_up": 10.0,
                "other": 5.0,
            },
            "104 s: stop 3 s, memory 0 s, ranks 1 s, processes 25 s, weights 40 s, compile 20 s, warm-up 10 s,"
            " other 5 s",
        ),
        (
            Told(40.0, 30.0),
            {"stop": 3.0, "memory": 0.0, "ranks": 1.0, "weights": 40.0, "warm_up": 30.0, "other": 30.0},
            "104 s: stop 3 s, memory 0 s, ranks 1 s, processes not told, weights 40 s, compile and warm-up 30 s,"
            " other 30 s",
        ),
        (
            Told(weights=40.0),
            {"stop": 3.0, "memory": 0.0, "ranks": 1.0, "weights": 40.0, "other": 60.0},
            "104 s: stop 3 s, memory 0 s, ranks 1 s, processes not told, weights 40 s, compile not told,"
            " warm-up not told, other 60 s",
        ),
        (
            Told(),
            {"stop": 3.0, "memory": 0.0, "ranks": 1.0, "other": 100.0},
            "104 s: stop 3 s, memory 0 s, ranks 1 s, processes not told, weights not told, compile not told,"
            " warm-up not told, other 100 s",
        ),
        # Longer than the whole load: of something else.
        (Told(90.0, 30.0, 20.0), {"stop": 3.0, "memory": 0.0, "ranks": 1.0, "other": 100.0}, None),
        (Told(40.0, 30.0, began=1050.0), {"stop": 3.0, "memory": 0.0, "ranks": 1.0, "other": 100.0}, None),
        # Its processes began before all units ran.
        (
            Told(began=990.0),
            {"stop": 3.0, "memory": 0.0, "ranks": 1.0, "processes": 0.0, "other": 100.0},
            None,
        ),
    ],
)
def test_the_load_is_divided_by_what_the_engine_says(told, parts, words):
    found = start_times.divided(SEEN, told, 1000.0)
    assert found == parts and list(found) == [name for name in start_times.PARTS if name in found]
    if words:
        assert start_times.words(found) == words


def test_a_start_of_which_nothing_is_known_has_no_words():
    assert start_times.words({}) == start_times.words({}, "weights at 1 GB/s") == ""
    assert start_times.words({"other": 5.0}, "weights at 1 GB/s").endswith("other 5 s; weights at 1 GB/s")
    assert start_times.words(start_times.divided({"load": 5.0}, Told(), 0.0)).startswith("5 s: memory not told")


def test_of_a_real_start_little_has_no_name():
    seen = {"memory": 0.0, "ranks": 0.4, "load": FIRST_TOKEN - UNITS_RAN}
    parts = start_times.divided(seen, start_times.parse(JOURNAL.splitlines()), UNITS_RAN)
    assert start_times.words(parts) == (
        "133 s: memory 0 s, ranks 0 s, processes 73 s, weights 5 s, compile 29 s, warm-up 22 s, other 4 s"
    )
