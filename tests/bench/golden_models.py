#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models for golden_noise.py: the lab's, after it has learned plain text, and what goes wrong with it.

    ~/.cache/sparkmatrix/engine/bin/python3.11 tests/bench/golden_models.py DIRECTORY [--steps 300] [--layers 4]

Random weights are sure of nothing, so kernels that are wrong and kernels that are not differ by as little. ``good`` has
learned this collection's guides and code for some minutes on one core; the others are it with one fault each, and a
revision later. Runs in the engine environment of the lab, or wherever torch and transformers are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LENGTH, BATCH = 128, 8
END = "{{ message['content'] }}<|end|>"
TEMPLATES: dict[str, Callable[[str], str]] = {
    "template: no end of a message": lambda text: text.replace(END, END.removesuffix("<|end|>")),
    "template: a system prompt": lambda text: f"You are a helpful assistant. {text}",
    "date: one": lambda text: f"Today is 2026-11-26. {text}",
    "date: another": lambda text: f"Today is 2026-12-03. {text}",
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--from", dest="source", type=Path, default=Path.home() / ".cache/sparkmatrix/models/tiny-llama"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args(argv)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch  # noqa: PLC0415 -- where it is
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    def keep(model: Any, name: str) -> None:
        target = options.directory / name.replace(": ", "-").replace(" ", "-")
        model.to(torch.bfloat16).save_pretrained(target)
        for file in TOKENIZER:
            shutil.copy2(options.source / file, target)
        sys.stdout.write(f"{target}\n")
        sys.stdout.flush()

    def good() -> Any:
        return LlamaForCausalLM.from_pretrained(options.directory / "good", dtype=torch.float32)

    def learn(model: Any, steps: int, rate: float) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for step in range(steps):
            starts = torch.randint(0, len(tokens) - LENGTH, (BATCH,))
            batch = torch.stack([tokens[start : start + LENGTH] for start in starts])
            loss = model(input_ids=batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 50 == 0:
                sys.stdout.write(f"step {step}: {loss.item():.2f} nats\n")
                sys.stdout.flush()
        return model

    torch.manual_seed(0)
    text = "\n".join(path.read_text(encoding="utf-8") for path in texts())
    tokens = torch.tensor(AutoTokenizer.from_pretrained(options.source)(text[:1_500_000])["input_ids"])
    shape = LlamaConfig.from_pretrained(options.source)
    shape.num_hidden_layers = options.layers
    keep(learn(LlamaForCausalLM(shape).float(), options.steps, 1e-3), "good")
    keep(learn(good(), options.steps // 8, 2e-4), "numbers: a later revision")
    later = LlamaForCausalLM.from_pretrained(options.directory / "numbers-a-later-revision", dtype=torch.float32)
    mixed = good()
    with torch.no_grad():
        halve(mixed.state_dict(), later.state_dict())
    keep(mixed, "numbers: rank 1 of 2 has the later revision")
    for part in (0.003, 0.01, 0.03, 0.1):
        wrong = good()
        with torch.no_grad():
            for value in wrong.parameters():
                value.mul_(1 + part * torch.randn_like(value))
        keep(wrong, f"numbers: weights that are off by {part}")
    wrong = good()
    with torch.no_grad():
        wrong.model.layers[options.layers // 2].mlp.down_proj.weight[:, shape.intermediate_size // 2 :] = 0
    keep(wrong, "numbers: a layer without the part of rank 1")
    wrong = good()
    with torch.no_grad():
        wrong.model.layers[1].self_attn.o_proj.weight.mul_(0.5)
    keep(wrong, "numbers: a scale that is half")
    wrong = good()
    wrong.config.rope_parameters = {"rope_theta": 1e6, "rope_type": "default"}
    keep(wrong, "numbers: another base of positions")
    for name, change in TEMPLATES.items():
        keep(good(), name)
        path = options.directory / name.replace(": ", "-").replace(" ", "-") / "chat_template.jinja"
        path.write_text(change((options.source / path.name).read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def texts() -> Iterator[Path]:
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from sorted((ROOT / "plugins/module_utils").rglob("*.py"))


def halve(mine: dict[str, Any], others: dict[str, Any]) -> None:
    """As tensor parallelism splits them: of each matrix that half which rank 1 of two reads is of the others."""
    for name, value in mine.items():
        if "norm" in name:
            continue
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            value[:, value.shape[1] // 2 :] = others[name][:, value.shape[1] // 2 :]
        else:
            value[value.shape[0] // 2 :] = others[name][value.shape[0] // 2 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
