# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What others have met with an engine, a version, a model or an option: one table, of which a plan knows its rows.

What concerns one recipe alone stands in its ``hazards``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables

ERROR, WARNING, NOTE = "error", "warning", "note"  # refused, warned of, and said in the plan
# A fact of a plan (:func:`_engine.job.facts_of`), and a pattern of all of its text or the number that it reaches.
Facts = Mapping[str, str | int]


@dataclass(frozen=True)
class Hazard:
    """``since``: the first version that has it, ``mended``: the first that has it no more. Of an unknown version only
    notes are said.

    ``when``: all of it is so, and nothing of ``unless``. ``sets``: options that the plan has because of it, unless
    recipe or user say otherwise. ``place``: what is to be changed, by its name in ``OptionNames``; empty: the recipe.
    """

    what: str
    remedy: str
    source: str
    severity: str = WARNING
    engine: str = ""
    since: str = ""
    mended: str = ""
    when: Facts = field(default_factory=dict)
    unless: Facts = field(default_factory=dict)
    sets: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    def concerns(self, facts: Facts, version: str = "") -> bool:
        """``version``: in place of an unknown one."""
        version = str(facts.get("version", "")) or version
        return (
            self.engine in {"", facts.get("engine", "")}
            and (
                not (self.since or self.mended)
                or option_tables.within(version, self.since or "0", self.mended or "999")
            )
            and all(_so(facts, *one) for one in self.when.items())
            and not any(_so(facts, *one) for one in self.unless.items())
        )


def _so(facts: Facts, name: str, wanted: str | int) -> bool:
    found = facts.get(name, "")
    if isinstance(wanted, int):
        return isinstance(found, int) and found >= wanted
    return re.fullmatch(wanted, str(found), re.IGNORECASE) is not None


_HYBRID_QWEN, _MTP = r".*Qwen3(\.[5-8]|-(Coder-)?Next).*", "(.*_)?mtp"
_VLLM, _SGLANG, _TRTLLM = "vllm", "sglang", "tensorrt-llm"
_SOME = ".+"
_CUDA_12 = r".*(?<![a-z0-9])cu(?:da)?[-_ ]?12(?![0-9]{2}|[0-9]?[a-z]).*"
_OFF = "0|false"
_SYNCHRONOUS = {"no-async-scheduling": True}
_MTP_RACE = Hazard(
    "MTP under asynchronous scheduling ends the engine, in minutes or hours of long conversations of several people"
    " (illegal memory access, Xid 31)",
    "That cost no speed in one pair of measurements and 30 to 40 % in another report; vLLM 0.29 does not need it",
    "vllm pull requests 50021, 53613 and 53183, issue 40756; spark-vllm-docker 194 and 308; club-3090 1059",
    NOTE,
    _VLLM,
    "0.15",
    "0.29",
    {"model": _HYBRID_QWEN, "draft": _MTP},
    sets=_SYNCHRONOUS,
)
_CUDA = Hazard(
    "{image} is made for CUDA 12: on the GPU of a Spark models in FP8 and NVFP4 have ended there with"
    " 'cutlass_gemm_caller … Error Internal' or 'Failed to find a kernel'",
    "Use the one for CUDA 13 (cu130)",
    "vllm issues 43367 and 40758; djangodevreng/dgx-spark-benchmarks, 2026-08",
    when={"image": _CUDA_12, "device": "gpu"},
    place="image",
)
_DRAFT_EXPERTS = Hazard(
    "where the experts of its MTP layer are not quantized, as in NVIDIA's exports, the kernel that is chosen for those"
    " (FlashInfer CUTLASS) has ended engines after hours (illegal memory access)",
    "Set moe_backend: triton in the options of the recipe's draft, or speculative-config.moe_backend",
    "spark-vllm-docker, nemotron-3-super-nvfp4-mtp (4.5 and 29 h); vllm issue 39288; still chosen by 0.33's source",
    engine=_VLLM,
    when={
        "model": "nvidia/.*",
        "draft": _MTP,
        "draft_model": "",
        "experts": 1,
        "quantization": ".*NVFP4.*",
        "device": "gpu",
    },
    unless={"--speculative-config.moe-backend": _SOME},
)
_DRAFTED_PIPELINE = Hazard(
    "drafts under pipeline parallel give wrong answers or end the engine without asynchronous scheduling, and with the"
    " model runner that vLLM had before 0.29",
    "Use tensor parallel, leave the draft out, or let vLLM 0.29 or newer schedule asynchronously, as it does by itself",
    "vllm issues 52071, 49355 and 57755; so in the source of 0.33",
    ERROR,
    _VLLM,
    when={"draft": _SOME, "pipeline": 2, "--async-scheduling": "false"},
)


def _hole(engine: str, since: str, mended: str, names: str, what: str) -> Hazard:
    known = option_tables.versions(engine)[-1]
    return Hazard(
        f"{{label}} {{version}} has a known hole ({names}): {what}",
        f"Use {mended} or newer; this release knows {known}",
        "",
        engine=engine,
        since=since,
        mended=mended,
    )


def _not_kept(what: str, source: str = "", remedy: str = "", **more: Any) -> Hazard:
    """Why computed prompts are not kept on disk."""
    when, place = {"prefix_cache_gb": 1, **more.pop("when", {})}, "prefix_cache_gb"
    return Hazard(what, remedy or "Set {prefix_cache_gb}: 0", source, ERROR, when=when, place=place, **more)


HAZARDS: tuple[Hazard, ...] = (
    # -- Speculative decoding.
    _MTP_RACE,
    replace(_MTP_RACE, since="0.29", mended="", when={**_MTP_RACE.when, "VLLM_USE_V2_MODEL_RUNNER": _OFF}),
    Hazard(
        "drafts of MiMo give garbage to some of several requests under asynchronous scheduling",
        "Nobody says why, nor whether 0.33 still does it",
        "vllm issue 46669, open, seen with seven drafts",
        NOTE,
        _VLLM,
        when={"model": ".*MiMo-V2.*", "draft": _SOME},
        sets=_SYNCHRONOUS,
    ),
    Hazard(
        "once a request has passed token 32768 no drafted token is accepted any more, of anybody, until a restart:"
        " answers stay right and come slower",
        "Use vLLM 0.29 or newer, or a context of at most 32768",
        "vllm issue 52873 (0.27.1, closed)",
        NOTE,
        _VLLM,
        "0.25",
        "0.29",
        {"model": _HYBRID_QWEN, "draft": _MTP, "context": 32769},
    ),
    _DRAFTED_PIPELINE,
    replace(
        _DRAFTED_PIPELINE, mended="0.29", when={"draft": _SOME, "pipeline": 2}, unless={"--async-scheduling": "false"}
    ),
    replace(_DRAFTED_PIPELINE, when={"draft": _SOME, "pipeline": 2, "VLLM_USE_V2_MODEL_RUNNER": _OFF}, unless={}),
    Hazard(
        "speculative decoding under pipeline parallel is not known to work",
        "Use tensor parallel, or leave it out",
        "vllm issue 57755",
        engine=_VLLM,
        when={"draft": _SOME, "pipeline": 2},
        unless={
            "--async-scheduling": "false",
            "VLLM_USE_V2_MODEL_RUNNER": _OFF,
            "version": r"0\.(1?[0-9]|2[0-8])(\..*)?",
        },
    ),
    Hazard(
        "pipeline parallel of SGLang knows speculative decoding by EAGLE only",
        "Use EAGLE or EAGLE3",
        "",
        ERROR,
        _SGLANG,
        when={"draft": "(?!mtp|eagle).+", "pipeline": 2},
    ),
    _DRAFT_EXPERTS,
    replace(_DRAFT_EXPERTS, severity=NOTE, when={**_DRAFT_EXPERTS.when, "model": "(?!nvidia/).*"}),
    Hazard(
        "weights of a DFlash draft that are quantized are read as if they were not: it drafts nonsense, or ends",
        "Use vLLM 0.33, or a draft in bfloat16",
        "vllm issues 51581 and 53116; the source of 0.33 asks for it",
        engine=_VLLM,
        since="0",
        mended="0.33",
        when={"draft": "dflash", "draft_model": ".*(fp8|int[48]|w[48]a|awq|gptq|nvfp4).*"},
    ),
    # -- Loading.
    Hazard(
        "InstantTensor reads twice where there is a draft, and over several machines a rank has ended at that without a"
        " word",
        "Use load-format: fastsafetensors, or leave the draft out",
        "spark-vllm-docker issue 377, open",
        when={"--load-format": "instanttensor", "draft": _SOME, "nodes": 2},
    ),
    Hazard(
        "files mapped into memory cannot be given back while so much is loaded: a rank with 90 GB has stood still for"
        " over an hour",
        "Set load-format: fastsafetensors, or instanttensor where memory is short while it loads",
        "vllm pull request 53906, 2026-08-28",
        engine=_VLLM,
        when={"weights_gb": 88, "--load-format": "|auto|safetensors|hf"},
    ),
    # -- Images and versions.
    _CUDA,
    replace(
        _CUDA,
        what=_CUDA.what.replace("{image} is", "{requirements}: one of them is"),
        when={"requirements": _CUDA_12, "device": "gpu"},
        place="venv_requirements",
    ),
    Hazard(
        "with an fp8 cache this model ends when it starts on this GPU (cuDNN, error 715) if the image has a cuDNN"
        " before 9.23.1",
        "If it ends so, take a newer image, or set kv-cache-dtype: auto",
        "dgx-spark-playbooks issue 107; flashinfer pull request 4426",
        NOTE,
        when={"model": ".*Nemotron-3.5-Lightning.*", "--kv-cache-dtype": "fp8.*", "image": _SOME},
    ),
    Hazard(
        "1.3.0rc15 stands still while it loads experts in NVFP4 on this GPU",
        "Use 1.3.0rc12, 1.2.1 or 1.4",
        "TensorRT-LLM issue 14500",
        engine=_TRTLLM,
        when={"image": r".*:1\.3\.0rc15\b.*"},
        place="image",
    ),
    Hazard(
        "1.2.0rc6 has locked up a whole machine while it loaded this model",
        "Use 1.2.1 or newer",
        "dgx-spark-playbooks issue 78",
        engine=_TRTLLM,
        when={"image": r".*:1\.2\.0rc6\b.*", "model": ".*Nemotron-3-Super.*"},
        place="image",
    ),
    Hazard(
        "the launcher of TensorRT-LLM {version} goes on when trtllm-serve has failed, which then shows after"
        " engine_ready_timeout_s only",
        "Over several nodes use an image of the 1.4 line",
        "",
        engine=_TRTLLM,
        since="1.0",
        mended="1.3",
        when={"backend": "mpi"},
        place="image",
    ),
    # -- Over several machines.
    Hazard(
        "over several machines the capture of CUDA graphs may stand still with experts",
        "If its journal ends at the capture, set disable-cuda-graph: true",
        "sglang issues 19991 and 29548",
        NOTE,
        _SGLANG,
        when={"nodes": 2, "experts": 1},
        unless={"--disable-cuda-graph": "true"},
    ),
    Hazard(
        "pipeline parallel of SGLang does not work with the overlap schedule",
        "Leave disable-overlap-schedule alone",
        "",
        ERROR,
        _SGLANG,
        when={"pipeline": 2, "--disable-overlap-schedule": "false"},
    ),
    Hazard(
        "expert parallel with tensor and data parallel above 1 gave wrong answers",
        "Set {expert_parallel}: false, or only one of the sizes",
        "vllm issue 37856",
        ERROR,
        _VLLM,
        when={"expert": "true", "tensor": 2, "data": 2},
    ),
    Hazard(
        "a second cache in the memory of several machines: reports of a start that ends in a timeout, and of other"
        " machines' parts that come back wrong",
        "Leave it out",
        "vllm issue 54415, open; MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks issue 57",
        engine=_VLLM,
        when={"--kv-offloading-size": _SOME, "nodes": 2},
        unless={"data": 2},
    ),
    # -- Computed prefixes on disk (docs/engine.md, Prefix cache).
    *(
        _not_kept(
            "what vLLM keeps of prompts on disk is written by the head alone, and a model that is split over several"
            " nodes has a part of it on each: the others' parts would come back empty, and answers be wrong",
            "so in the source of 0.33; vllm issue 54415 and pull request 46556, open;"
            " MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks issue 57",
            "Set {prefix_cache_gb}: 0; one node, replicas of one node each, or SGLang can keep it",
            engine=_VLLM,
            when=split,
        )
        for split in ({"tensor": 2}, {"pipeline": 2})
    ),
    *(
        _not_kept(
            f"{{label}} comes to terms with files that are gone, and keeps clients apart in them, since {since}",
            "read in its source; older ones were not looked at, or do not",
            engine=engine,
            unless=new,
        )
        for engine, since, new in (
            (_VLLM, "0.32", {"version": r"0\.(3[2-9]|[4-9][0-9])(\..*)?|[1-9].*"}),
            (_SGLANG, "0.5.23", {"version": r"0\.5\.(2[3-9]|[3-9][0-9])(\..*)?|0\.([6-9]|[1-9][0-9])\..*|[1-9].*"}),
        )
    ),
    _not_kept(
        "it keeps nothing on disk by itself: TensorRT-LLM has an interface for that, and an example that says of itself"
        " that it is not for production; what a recipe's own command does its recipe says",
        "its documentation, 1.4",
        when={"engine": "(?!vllm|sglang).*"},
    ),
    _not_kept("vLLM's connector for it refuses a CPU", "so in the source of 0.33", when={"device": "cpu"}),
    _not_kept(
        "what all ranks of such a model have alike (MLA) SGLang writes on the first node alone, so the others never"
        " find it",
        "so in the source of 0.5.23",
        engine=_SGLANG,
        when={"attention": "mla", "nodes": 2},
    ),
    _not_kept(
        "nobody has shown that it comes back right for a model that keeps compressed tokens or rings",
        "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks pull requests 58, 100 and 232: each changes the engine for it",
        when={"attention": "listed"},
    ),
    _not_kept(
        "kv-cache-dtype is of a few bits, or has a scale for each token: a report says that such a cache is written and"
        " never read",
        "syv-ai/qwen38-27b-rtx3090 issue 33",
        when={"--kv-cache-dtype": "(?!auto|bfloat16|float16|fp8(_e4m3|_e5m2|_inc|_ds_mla)?$).+"},
    ),
    _not_kept(
        "vLLM ends where expandable_segments:True meets a connector",
        "so in the source of 0.33 (config/vllm.py)",
        "Set {prefix_cache_gb}: 0, or take it out of PYTORCH_CUDA_ALLOC_CONF",
        engine=_VLLM,
        when={"PYTORCH_CUDA_ALLOC_CONF": ".*expandable_segments:true.*"},
    ),
    _not_kept(
        "prefix-caching-hash-algo names blocks with another seed at each start, so none is found again",
        "so in the source of 0.33",
        "Leave prefix-caching-hash-algo out",
        engine=_VLLM,
        when={"--prefix-caching-hash-algo": ".*xxhash.*"},
    ),
    _not_kept(
        "an adapter is known by its name alone, so another one of that name would be answered from what the first one"
        " has computed",
        "so in the source of vLLM 0.33",
        when={"--enable-lora": "true"},
    ),
    _not_kept("a recipe that replaces files of its image may change what is written", when={"patches": 1}),
    # -- Options and variables.
    Hazard(
        "with expandable_segments:True the driver has run out of memory (NV_ERR_NO_MEMORY) while a draft was loaded;"
        " without it the same start went further",
        "If that happens, take it out of PYTORCH_CUDA_ALLOC_CONF",
        "dgx-spark-playbooks issue 97, 2026-08-12 (two machines)",
        NOTE,
        when={"PYTORCH_CUDA_ALLOC_CONF": ".*expandable_segments:true.*"},
    ),
    Hazard(
        "with VLLM_MARLIN_USE_ATOMIC_ADD=1 the same question gets different answers, also at temperature 0",
        "For answers that can be repeated set it to 0, which costs some speed",
        "sglang issue 39455 (vLLM 0.28: 12 of 12 runs differ, 0 of 12 without)",
        NOTE,
        _VLLM,
        when={"VLLM_MARLIN_USE_ATOMIC_ADD": "1"},
    ),
    Hazard(
        "tool-call-parser does nothing without enable-auto-tool-choice: calls of tools arrive as text",
        "Add enable-auto-tool-choice: true to the options, or leave the parser out",
        "",
        engine=_VLLM,
        when={"--tool-call-parser": _SOME},
        unless={"--enable-auto-tool-choice": "true"},
    ),
    Hazard(
        "VLLM_PROCESS_NAME_PREFIX renames the ranks, and the keeper finds them by name",
        "Leave it out",
        "",
        ERROR,
        when={"VLLM_PROCESS_NAME_PREFIX": _SOME},
        place="environment",
    ),
    # -- Holes, as this collection runs the engines.
    _hole(
        _VLLM,
        "0.10.1",
        "0.18.0",
        "CVE-2026-27893, before 0.14.0 also CVE-2026-22807",
        "a model's own code runs though it is not trusted to",
    ),
    _hole(_VLLM, "0.8.3", "0.14.1", "CVE-2026-22778", "who sends it a picture may run code"),
    _hole(
        _SGLANG,
        "0.5.5",
        "0.5.10",
        "CVE-2026-3059, CVE-2026-3060",
        "who reaches its ports for pictures or for split prefill can run code",
    ),
    _hole(_TRTLLM, "0", "0.18.2", "CVE-2025-23254", "an account of the node can run code in it"),
)


@dataclass(frozen=True)
class _Words:
    """What texts may name: facts, else what an option is called."""

    facts: Facts
    names: OptionNames

    def __getitem__(self, name: str) -> str:
        return str(self.facts[name]) if name in self.facts else self.names[name]


def settings(facts: Facts) -> dict[str, Any]:
    """Options that hazards of the plan ask for, where neither recipe nor user says them."""
    return {
        name: value
        for hazard in HAZARDS
        if hazard.sets and hazard.concerns(facts)
        for name, value in hazard.sets.items()
        if _fact(name) not in facts
    }


def findings(facts: Facts, where: str, names: OptionNames, table: Sequence[Hazard] = HAZARDS) -> Iterator[Finding]:
    """What is refused or warned of. ``where``: the recipe."""
    words = _Words(facts, names)
    for hazard in table:
        if not hazard.concerns(facts):
            continue
        found, remedy, severity = hazard.what, hazard.remedy, hazard.severity
        if hazard.sets and not _set(hazard, facts):
            severity, remedy = WARNING, f"Set {_options(hazard)}"
        if severity != NOTE:
            source = f" ({hazard.source})" if hazard.source else ""
            yield Finding(
                names[hazard.place] if hazard.place else where,
                f"{found.format_map(words)}{source}",
                remedy.format_map(words),
                severity=severity,
            )


def notes(facts: Facts, names: OptionNames) -> list[str]:
    """What the plan says beside."""
    said = []
    for hazard in (hazard for hazard in HAZARDS if hazard.severity == NOTE):
        known, words = hazard.concerns(facts), _Words(facts, names)
        if not (known or hazard.concerns(facts, hazard.since)) or (known and hazard.sets and not _set(hazard, facts)):
            continue
        found, so = hazard.what.format_map(words), ""
        if hazard.sets and known:
            so = f"; so the plan sets {_options(hazard)}"
        elif hazard.sets and not _set(hazard, facts):
            so = f"; set {_options(hazard)}"
        older = hazard.mended and not known
        before = f"if {facts.get('label', 'it')} is older than {hazard.mended}: " if older else ""
        said.append(f"{before}{found}{so}. {hazard.remedy.format_map(words)} ({hazard.source})")
    return said


def of_answer(engine: str, label: str, version: str, cuda: str, place: str) -> Iterator[Finding]:
    """By what an image or environment says of itself on a node. ``version``, ``cuda``: empty where it is known."""
    facts: Facts = {
        "engine": engine,
        "label": label,
        "version": version,
        "image": f"{place} (CUDA {cuda})" if cuda else "",
        "device": "gpu",
    }
    table = [
        hazard for hazard in HAZARDS if hazard.when.keys() <= {"image", "device"} and hazard.engine in {"", engine}
    ]
    return (replace(finding, host=place) for finding in findings(facts, place, OptionNames(), table))


def _fact(option: str) -> str:
    return f"--{option.removeprefix('no-')}"


def _set(hazard: Hazard, facts: Facts) -> bool:
    return all(facts.get(_fact(name)) == ("false" if name.startswith("no-") else "true") for name in hazard.sets)


def _options(hazard: Hazard) -> str:
    return ", ".join(f"{name}: true" for name in hazard.sets)
