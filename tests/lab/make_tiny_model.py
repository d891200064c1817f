#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Make a tiny Llama with random weights: ``make_tiny_model.py DIRECTORY``. Runs in the engine environment, in seconds.

12 heads and a vocabulary of 9 x 64 divide by two, three and four nodes (vLLM pads the vocabulary to 64 and then divides
it), and a head of 32 is the smallest that vLLM's CPU attention takes.
The answers are noise, but they are the same noise every time: weights and tokenizer come from fixed seeds.
"""

# ruff: noqa: PLC0415 -- imported where they exist: in the engine environment
from __future__ import annotations

import os
import sys

SPECIAL = ["<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>"]
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "four small machines share one model and answer as one",
    "a cable in each cage, an address on each half, and a number for every node",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main(directory: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 10, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=576,  # of which the tokenizer uses 512
        hidden_size=384,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=12,
        num_key_value_heads=12,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
