#!/usr/bin/env python3
"""Makes what the tests of adapters compare with: a tiny random Llama, adapters, and the logits that PEFT computes.

Needs torch, transformers, peft and tokenizers from PyPI, which no test needs. From this folder:

    python make.py base       # base/, adapters/ by PEFT, and their logits
    burn-dist-lm pretrain --model base --lora-rank 4 --lora-alpha 6 --lora-dropout 0.1 --lora-targets q_proj,mlp.* \
        --mesh fsdp=2,tp=2 --steps 30 --batch 4 --seq 12 --lr 3e-2 --no-plot --save trained
    python make.py trained    # the logits of trained/, as PEFT loads it

The largest differences are printed, and the weights are drawn by seeds, so that all can be made again.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
BASE, ADAPTERS, TRAINED = HERE / "base", HERE / "adapters", HERE / "trained"
LOGITS = HERE / "logits.safetensors"
VOCAB = 64


def tokens():
    return torch.tensor([[(37 * i + 11 * (i // 7) + 5 * row) % VOCAB for i in range(12)] for row in range(2)])


def logits(model):
    with torch.no_grad():
        return model.eval()(tokens()).logits.float().contiguous()


def base():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        eos_token_id=1,
        bos_token_id=0,
    )
    model = LlamaForCausalLM(config).float()
    shutil.rmtree(BASE, ignore_errors=True)
    model.save_pretrained(BASE)
    (BASE / "generation_config.json").unlink(missing_ok=True)
    words = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{number}": number for number in range(3, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    tokenizer.save(str(BASE / "tokenizer.json"))

    lora = LoraConfig(
        r=4,
        lora_alpha=12,
        lora_dropout=0.05,
        target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, lora)
    with torch.no_grad():
        for name, factor in adapted.named_parameters():
            if "lora_B" in name:
                factor.normal_(std=0.3)
    shutil.rmtree(ADAPTERS, ignore_errors=True)
    adapted.save_pretrained(ADAPTERS)
    (ADAPTERS / "README.md").unlink(missing_ok=True)
    config = json.loads((ADAPTERS / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "base"
    (ADAPTERS / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    found = loaded(ADAPTERS)
    print("what adapters change:", (found - logits(AutoModelForCausalLM.from_pretrained(BASE))).abs().max().item())
    save_file({"tokens": tokens().int(), "adapters": found}, LOGITS)


def loaded(folder):
    model = AutoModelForCausalLM.from_pretrained(BASE).float()
    return logits(PeftModel.from_pretrained(model, folder))


def trained():
    found = loaded(TRAINED)
    print("what training changed:", (found - logits(AutoModelForCausalLM.from_pretrained(BASE))).abs().max().item())
    save_file(load_file(LOGITS) | {"trained": found}, LOGITS)


if __name__ == "__main__":
    {"base": base, "trained": trained}[sys.argv[1]]()
