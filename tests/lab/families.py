#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Serve a tiny model of each architecture family that a recipe ships: ``families.py TOKENIZER DIRECTORY [NAME ...]``.

Runs in the engine environment of the lab, without nodes. The weights are random, made by transformers from the real
family's configuration class and written as a checkpoint, so vLLM's own loader, model code and scheduler take part.
TOKENIZER is a directory of make_tiny_model.py. One JSON line per family: what came out, or the last error of vLLM.
"""

# ruff: noqa: PLC0415 -- imported where they exist: in the engine environment
from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIMIT_S = 300  # of one family; a child that hangs is ended
SIZES = {
    "vocab_size": 576,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's CPU attention takes
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Every other layer of a hybrid keeps a state instead of a cache.
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "head_dim": 64,  # these two are, with kv_lora_rank, the one size that the CPU has
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64}
MINIMAX = {
    "rotary_dim": 16,
    "use_routing_bias": True,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
}
MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 32, "n_groups": 2}
NEMOTRON_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
}
GEMMA = {**SLIDING, "global_head_dim": 32, "vocab_size_per_layer_input": 576}
# name: (configuration class, sizes beside SIZES)
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", {}),
    "llama": ("LlamaConfig", {}),
    "qwen3-moe": ("Qwen3MoeConfig", EXPERTS),
    "minimax-m2": ("MiniMaxM2Config", {**MINIMAX, "scoring_func": "softmax"}),
    "minimax-m2-sigmoid": ("MiniMaxM2Config", {**MINIMAX, "scoring_func": "sigmoid"}),
    "gpt-oss": ("GptOssConfig", {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-next": ("Qwen3NextConfig", {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 64}),
    "qwen3.5": ("Qwen3_5TextConfig", LINEAR),
    "qwen3.5-moe": ("Qwen3_5MoeTextConfig", {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 64}),
    "nemotron-h": ("NemotronHConfig", {**MAMBA, "layers_block_type": ["mamba", "attention", "mamba", "mlp"]}),
    "nemotron-h-moe": (
        "NemotronHConfig",
        {**MAMBA, **NEMOTRON_EXPERTS, "layers_block_type": ["mamba", "moe", "attention", "moe"]},
    ),
    "glm-4.7-flash": ("Glm4MoeLiteConfig", MLA),
    "glm-5": ("GlmMoeDsaConfig", {**MLA, "index_n_heads": 2, "index_head_dim": 64, "index_topk": 64}),
    "gemma-4": ("Gemma4TextConfig", GEMMA),
    "gemma-4-moe": (
        "Gemma4TextConfig",
        {**GEMMA, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    ),
    "qwen3-vl": ("Qwen3VLConfig", {}),
    "qwen3-vl-moe": ("Qwen3VLMoeConfig", {**EXPERTS, "mlp_only_layers": [], "norm_topk_prob": True}),
    "qwen3-asr": ("Qwen3ASRConfig", {}),
}
KEPT: list[Any] = []  # goes with its library otherwise
IMAGE = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SOUND = {"audio_bos_token": "<|audio_start|>", "audio_token": "<|audio_pad|>", "audio_eos_token": "<|audio_end|>"}
PROMPT = "the quick brown fox"
RERANKER = {
    "classifier_from_token": ["n", "y"],  # two tokens of the tiny tokenizer
    "is_original_qwen3_reranker": True,
}


def without_operators() -> None:
    """torchvision's compiled operators are a CUDA build, which does not load beside a CPU build of torch. The models
    use its Python only, but that wants the operators to have names."""
    import torch.library

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    library = torch.library.Library("torchvision", "DEF")
    texts = [path.read_text() for path in pathlib.Path(spec.origin).parent.glob("_*_registrations.py")]
    for name in sorted(set(re.findall(r'(?:register_meta\("|"torchvision::)(\w+)', " ".join(texts)))):
        library.define(f"{name}(Tensor x) -> Tensor")
    KEPT.append(library)


def make(tokenizer: str, directory: str, name: str) -> None:
    import torch
    import transformers

    kind, sizes = CONFIGURATIONS[name]
    torch.manual_seed(0)
    words = transformers.AutoTokenizer.from_pretrained(
        tokenizer, **({"extra_special_tokens": SOUND} if name == "qwen3-asr" else {})
    )
    if name == "qwen3-asr":
        config = hearing(transformers, kind, words, directory)
        model = transformers.Qwen3ASRForConditionalGeneration(config)
    elif name.startswith("qwen3-vl"):
        config = vision(transformers, kind, sizes, words, directory)
        model = transformers.AutoModelForImageTextToText.from_config(config)
    else:
        config = getattr(transformers, kind)(**{**SIZES, **sizes}, dtype="bfloat16")
        model = transformers.AutoModelForCausalLM.from_config(config)
    words.save_pretrained(directory)
    model.to(torch.bfloat16).save_pretrained(directory)
    if name == "qwen3-vl-moe":
        as_published(pathlib.Path(directory) / "model.safetensors")


def as_published(path: pathlib.Path) -> None:
    """Qwen publishes the experts of this family the other way round than transformers saves them."""
    files = importlib.import_module("safetensors.torch")
    tensors = files.load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor.transpose(-1, -2).contiguous()
    files.save_file(tensors, path, metadata={"format": "pt"})


def vision(transformers: Any, kind: str, sizes: dict[str, Any], words: Any, directory: str) -> Any:
    """Its configuration; beside it what makes patches of an image."""
    words.add_special_tokens({"additional_special_tokens": list(IMAGE)})
    start, end, image, video = words.convert_tokens_to_ids(list(IMAGE))
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    pixels = {"size": {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}}
    images = transformers.Qwen2VLImageProcessor(**patches, **pixels)
    videos = transformers.Qwen3VLVideoProcessor(**patches, **pixels)
    transformers.Qwen3VLProcessor(images, words, videos).save_pretrained(directory)
    text = {
        **SIZES,
        **sizes,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]},
    }
    seen = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128}
    return getattr(transformers, kind)(
        text_config=text,
        vision_config={**seen, "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
        dtype="bfloat16",
    )


def hearing(transformers: Any, kind: str, words: Any, directory: str) -> Any:
    """Its configuration; beside it what makes features of sound."""
    transformers.Qwen3ASRProcessor(transformers.Qwen3ASRFeatureExtractor(), words).save_pretrained(directory)
    heard = {"encoder_layers": 2, "encoder_attention_heads": 2, "d_model": 64, "encoder_ffn_dim": 128}
    return getattr(transformers, kind)(
        text_config={"model_type": "qwen3", **SIZES, "tie_word_embeddings": True},
        audio_config={**heard, "downsample_hidden_size": 16, "output_dim": SIZES["hidden_size"]},
        audio_token_id=words.convert_tokens_to_ids(SOUND["audio_token"]),
        dtype="bfloat16",
    )


def engine(directory: str, **options: Any) -> Any:
    from vllm import LLM

    return LLM(
        directory,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=2,
        kv_cache_memory_bytes=64 << 20,
        disable_log_stats=True,
        **options,
    )


def tokens(directory: str, **options: Any) -> str:
    from vllm import SamplingParams

    llm = engine(directory, **options)
    (answer,) = llm.generate([PROMPT], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True), use_tqdm=False)
    return f"{len(answer.outputs[0].token_ids)} tokens"


def picture(directory: str) -> str:
    from vllm import SamplingParams

    pixels = importlib.import_module("PIL.Image").new("RGB", (64, 64))

    llm = engine(directory, limit_mm_per_prompt={"image": 1, "video": 0})
    start, end, image, _video = IMAGE
    prompt = {"prompt": start + image + end + PROMPT, "multi_modal_data": {"image": pixels}}
    (answer,) = llm.generate([prompt], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True), use_tqdm=False)
    return f"{len(answer.outputs[0].token_ids)} tokens"


def sound(directory: str) -> str:
    """A second of it; and words alone, as the probe asks."""
    from vllm import SamplingParams

    llm = engine(directory, limit_mm_per_prompt={"audio": 1})
    second = importlib.import_module("numpy").zeros(16000, dtype="float32")
    heard = {"prompt": "".join(SOUND.values()) + PROMPT, "multi_modal_data": {"audio": (second, 16000)}}
    asked = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    answers = llm.generate([heard, PROMPT], asked, use_tqdm=False)
    return " and ".join(f"{len(answer.outputs[0].token_ids)} tokens" for answer in answers)


def vector(directory: str) -> str:
    llm = engine(directory, runner="pooling", convert="embed")
    (answer,) = llm.embed([PROMPT], use_tqdm=False)
    return f"a vector of {len(answer.outputs.embedding)}"


def score_of_pictures(directory: str) -> str:
    return score(directory, "Qwen3VLForSequenceClassification")


def score(directory: str, architecture: str = "Qwen3ForSequenceClassification") -> str:
    llm = engine(directory, runner="pooling", hf_overrides={**RERANKER, "architectures": [architecture]})
    (answer,) = llm.score(PROMPT, ["the lazy dog"], use_tqdm=False)
    return f"a score between 0 and 1: {0 <= answer.outputs.score <= 1}"


@dataclass(frozen=True)
class Family:
    """``recipes``: how the names of the shipped recipes begin that are of it; none: a part of the family after it.
    ``refused``: what the CPU build says."""

    model: str  # of CONFIGURATIONS
    ask: Callable[[str], str]
    recipes: tuple[str, ...]
    refused: str = ""


FAMILIES = {
    "llama": Family("llama", tokens, ("llama-",)),
    "qwen3": Family("qwen3", tokens, ("qwen3-8b", "qwen3-32b")),
    "qwen3-moe": Family("qwen3-moe", tokens, ("qwen3-235b",)),
    # The real ones choose their experts by sigmoid; all else of them is served.
    "minimax-m2": Family("minimax-m2", tokens, ()),
    "minimax-m2-sigmoid": Family(
        "minimax-m2-sigmoid", tokens, ("minimax-m2",), 'assert self.scoring_func == "softmax"'
    ),
    "gpt-oss": Family("gpt-oss", tokens, ("gpt-oss",)),
    "qwen3-next": Family("qwen3-next", tokens, ("qwen3-coder-next",)),
    "qwen3.5": Family("qwen3.5", tokens, ("qwen3.6-27b", "qwen3.8-27b")),
    "qwen3.5-moe": Family("qwen3.5-moe", tokens, ("qwen3.5-", "qwen3.6-35b")),
    # All that are shipped have experts; what else is in them is served.
    "nemotron-h": Family("nemotron-h", tokens, ()),
    "nemotron-h-moe": Family(
        "nemotron-h-moe", tokens, ("nemotron-3",), "is_act_and_mul=False is supported only for CUDA, XPU and ROCm"
    ),
    "glm-4.7-flash": Family("glm-4.7-flash", tokens, ("glm-4.7-flash",)),
    "glm-5": Family("glm-5", tokens, ("glm-5.2",), "Sparse Attention is not supported on CPU"),
    "gemma-4": Family("gemma-4", tokens, ("gemma-4-31b",)),
    "gemma-4-moe": Family("gemma-4-moe", tokens, ("gemma-4-26b",)),
    "qwen3-vl": Family("qwen3-vl", picture, ("qwen3-vl-32b",)),
    "qwen3-vl-moe": Family("qwen3-vl-moe", picture, ("qwen3-vl-30b", "qwen3-vl-235b")),
    "qwen3-asr": Family("qwen3-asr", sound, ("qwen3-asr",)),
    "qwen3-vl-embedding": Family("qwen3-vl", vector, ("qwen3-vl-embedding",)),
    "qwen3-embedding": Family("qwen3", vector, ("qwen3-embedding",)),
    "qwen3-reranker": Family("qwen3", score, ("qwen3-reranker",)),
    "qwen3-vl-reranker": Family("qwen3-vl", score_of_pictures, ("qwen3-vl-reranker",)),
}
# Not tried: served by SGLang or by a command of their own, for which the lab has a stand-in; and families of autumn
# 2026, of which no tiny model has been made.
NOT_TRIED = (
    *("minimax-m3", "inkling", "glm-5.3-flash", "deepseek-v4-flash-dspark", "qwen3.8-flash-next-b12x"),
    *("deepseek-v4", "qwen3.8-flash-next", "mimo-v2.6", "laguna", "mistral-small-4", "hy3", "step-3.7", "command-a"),
    *("nemotron-3-nano-omni", "muse-glimmer"),
)


def child(tokenizer: str, directory: pathlib.Path, family: str, answer: int) -> None:
    log = (directory / f"{family}.log").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    signal.alarm(LIMIT_S)
    wanted = FAMILIES[family]
    model = directory / wanted.model
    try:
        if not (model / "config.json").exists():
            make(tokenizer, str(model), wanted.model)
        said = {"said": wanted.ask(str(model))}
    except BaseException as exc:  # the engine's own words are the result
        traceback.print_exc()
        words = str(exc) or traceback.extract_tb(exc.__traceback__)[-1].line
        said = {"refused": " ".join(f"{type(exc).__name__}: {words}".split())[:600]}
    os.write(answer, json.dumps(said).encode())
    os._exit(0)


def main(arguments: list[str]) -> int:
    tokenizer, directory, *families = arguments
    wrong = 0
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in the child itself: each import is half a minute
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS="1",
        TORCHDYNAMO_DISABLE="1",
        VLLM_NO_USAGE_STATS="1",
    )
    without_operators()
    import transformers  # noqa: F401 -- once, for all children
    import vllm
    import vllm.entrypoints.llm
    import vllm.v1.engine.core  # noqa: F401

    for family in families or FAMILIES:
        began = time.monotonic()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(tokenizer, pathlib.Path(directory), family, writer)
        os.close(writer)
        with os.fdopen(reader) as handle:
            said = handle.read()
        _, status = os.waitpid(pid, 0)
        result = json.loads(said) if said else {"died": f"status {status}"}
        refused = FAMILIES[family].refused
        wrong += refused not in result.get("refused", "") if refused else "said" not in result
        print(json.dumps({"family": family, "seconds": round(time.monotonic() - began, 1), **result}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
