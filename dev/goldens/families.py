"""Goldens of the families of decoders, made with transformers: random weights, logits, and greedy text.

    python dev/goldens/families.py burn-dist-lm/tests/goldens

Needs torch, transformers and safetensors; none of them is part of CI. Made with transformers 5.24.0 and torch 2.15.0.

Each folder has `config.json` and `model.safetensors` as the library writes them (weights in bf16, computed with in f32),
and `expected.safetensors`: `tokens` [40], `logits` [40, vocab] of them, and `greedy` [24], the tokens after the first 8.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEQ, PROMPT, NEW = 40, 8, 24
# The likeliest token leads by so much at every step, so that rounding does not choose.
MARGIN = 0.02

SIZES = dict(
    vocab_size=96,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)

CASES = {
    "llama": dict(model_type="llama", rms_norm_eps=1e-5),
    "llama-tied-llama3": dict(
        model_type="llama",
        tie_word_embeddings=True,
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama-linear": dict(
        model_type="llama", rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
    ),
    "llama-dynamic": dict(
        model_type="llama",
        max_position_embeddings=24,
        rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0),
    ),
    "llama-biases-yarn": dict(model_type="llama", attention_bias=True, rope_parameters=YARN),
    "mistral-window": dict(model_type="mistral", head_dim=8, sliding_window=6),
    "qwen2-window": dict(
        model_type="qwen2", tie_word_embeddings=True, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen3-yarn": dict(
        model_type="qwen3", head_dim=8, rope_parameters=YARN | dict(truncate=False, beta_fast=16.0, beta_slow=2.0)
    ),
    "mixtral": dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": dict(
        model_type="qwen3_moe",
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=12,
        norm_topk_prob=True,
    ),
    "smollm3": dict(model_type="smollm3", num_hidden_layers=3, no_rope_layer_interval=2),
}


def model_of(options, seed):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**(SIZES | options))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Wide enough that every option changes the logits.
            noise = torch.randn_like(parameter)
            is_norm = parameter.ndim == 1 and "norm" in name
            values = 1 + 0.3 * noise if is_norm else 0.35 * noise
            parameter.copy_(values.to(torch.bfloat16))
    return model


def expected_of(model, seed):
    tokens = torch.randint(2, SIZES["vocab_size"], (SEQ,), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
        row, margin = tokens[:PROMPT].tolist(), float("inf")
        for _ in range(NEW):
            last = model(torch.tensor([row]), use_cache=False).logits[0, -1]
            best = last.topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            row.append(int(best.indices[0]))
    greedy = torch.tensor(row[PROMPT:], dtype=torch.int32)
    return dict(tokens=tokens.to(torch.int32), logits=logits.contiguous(), greedy=greedy), margin


def make(root, name, options):
    for seed in range(1000):
        model = model_of(options, seed)
        expected, margin = expected_of(model, seed)
        # An end would stop the text.
        if margin > MARGIN and SIZES["eos_token_id"] not in expected["greedy"].tolist():
            break
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(expected, folder / "expected.safetensors")
    config = json.loads((folder / "config.json").read_text())
    print(name, f"seed {seed}, margin {margin:.3f},", config["architectures"], len(set(expected["greedy"].tolist())))


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[2:] or list(CASES)
    for case in wanted:
        make(pathlib.Path(sys.argv[1]), case, CASES[case])
