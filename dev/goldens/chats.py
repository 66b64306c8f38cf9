"""Goldens of chat templates, made with transformers: tokens of conversations, and which of them are answers.

    python dev/goldens/chats.py FOLDER_OF_WHEELS burn-dist-train/tests/goldens/chats

The folder has the wheels of `trl` 1.16.0 and `axolotl` 0.19.0 (`pip download --no-deps`), from which templates are
taken as they are. Needs transformers 5.24.0 and jinja2; none of it is part of CI.

Writes `tokenizer.json` (a small one), `conversations.jsonl`, and for each template `templates/NAME.jinja` and
`expected/NAME.txt`, with a line for each conversation: the FNV-1a hash of its ids and of the mask of its answers, or
`fails` where the template raises, `prefix` where a template without `{% generation %}` writes earlier messages otherwise
once others follow, `no answer` where there is none.
"""

import datetime
import json
import pathlib
import random
import re
import struct
import sys
import zipfile

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

TRL = "trl-1.16.0-py3-none-any.whl", "trl/chat_templates/"
AXOLOTL = "axolotl-0.19.0-py3-none-any.whl", "axolotl/utils/chat_templates/templates/"
TEMPLATES = [
    (TRL, "llama3"),
    (TRL, "llama3_training"),
    (TRL, "llama3_2"),
    (TRL, "qwen2_5"),
    (TRL, "qwen2_5_training"),
    (TRL, "qwen3"),
    (TRL, "qwen3_training"),
    (TRL, "phi3_5_training"),
    (TRL, "gemma_training"),
    (TRL, "deepseekv3_training"),
    (TRL, "gptoss_training"),
    (AXOLOTL, "chatml"),
    (AXOLOTL, "mistral_v3_tekken"),
]
SPECIAL = """<s> </s> <bos> <|endoftext|> <|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|end_header_id|>
<|eot_id|> <|system|> <|user|> <|assistant|> <|end|> <start_of_turn> <end_of_turn> [INST] [/INST] <think> </think>
<|start|> <|message|> <|channel|> <|return|>""".split()
# What ends an answer.
ENDS = ["</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|return|>"]
BOS, EOS = "<s>", "</s>"
NUM = 200
MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
WORDS = """the a red blue kite drum river apple seven twelve counts slowly over under naïve 日本 façade \U0001F980 "quoted"
it's 3.14 {{braces}} {%tag%} <b>bold</b> a\\b tab\there line\nbreak two\n\nbreaks  spaces & more""".split(" ")


class Fixed(datetime.datetime):
    """The day that rows of data are told."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def text_of(draw):
    text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 12)))
    return draw.choice(["", "", "", " ", "\n"]) + text + draw.choice(["", "", "", " ", "\n"])


def conversation(draw):
    messages = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": text_of(draw)})
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": text_of(draw)})
        answer = {"role": "assistant", "content": text_of(draw)}
        if draw.random() < 0.15:
            answer["reasoning_content"] = text_of(draw)
        if draw.random() < 0.1:
            answer["tool_calls"] = None
        messages.append(answer)
    fate = draw.random()
    if fate < 0.1:
        # A question without an answer at the end.
        messages.append({"role": "user", "content": text_of(draw)})
    elif fate < 0.14:
        messages = [it for it in messages if it["role"] != "assistant"]
    elif fate < 0.18:
        messages.append({"role": "assistant", "content": text_of(draw)})
    return messages


def small_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320 + len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def by_prefixes(tokenizer, messages):
    """Which tokens are answers, by what each message adds to the text."""
    render = lambda messages, prompt: tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=prompt
    )
    whole = render(messages, False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    ids, mask = encoded["input_ids"], [0] * len(encoded["input_ids"])
    ends = set(tokenizer.convert_tokens_to_ids(ENDS))
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        with_it, before = render(messages[: at + 1], False), render(messages[:at], True) if at else render([], True)
        if not whole.startswith(with_it) or not with_it.startswith(before):
            return None
        inside = [
            index
            for index, (start, end) in enumerate(encoded["offset_mapping"])
            if end > len(before) and start < len(with_it)
        ]
        last = max((index for index in inside if ids[index] in ends), default=inside[-1] if inside else -1)
        for index in inside:
            mask[index] = int(index <= last)
    return mask


def line(tokenizer, template, messages):
    tokenizer.chat_template = template
    if not any(message["role"] == "assistant" for message in messages):
        return "no answer"
    try:
        marked = bool(MARK.search(template))
        made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=marked)
        mask = made["assistant_masks"] if marked else by_prefixes(tokenizer, messages)
    except Exception:
        return "fails"
    if mask is None:
        return "prefix"
    if not any(mask):
        return "no answer"
    ids = made["input_ids"]
    return f"{fnv(struct.pack(f'<{len(ids)}I', *ids) + bytes(mask)):016x}"


if __name__ == "__main__":
    wheels, to = map(pathlib.Path, sys.argv[1:3])
    chat_template_utils.datetime = Fixed
    draw = random.Random(39)
    conversations = [conversation(draw) for _ in range(NUM)]
    rows = [json.dumps({"messages": it}, ensure_ascii=False) + "\n" for it in conversations]
    for name in ["templates", "expected"]:
        (to / name).mkdir(parents=True, exist_ok=True)
    (to / "conversations.jsonl").write_text("".join(rows))
    small = small_tokenizer(message["content"] for it in conversations for message in it)
    (to / "tokenizer.json").write_text(json.dumps(json.loads(small.to_str()), ensure_ascii=False, separators=(",", ":")))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=small, bos_token=BOS, eos_token=EOS)
    config = {"bos_token": BOS, "eos_token": EOS, "add_bos_token": False}
    (to / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    ends = {"eos_token_id": tokenizer.convert_tokens_to_ids(ENDS)}
    (to / "generation_config.json").write_text(json.dumps(ends) + "\n")
    for (wheel, folder), name in TEMPLATES:
        with zipfile.ZipFile(wheels / wheel) as archive:
            template = archive.read(f"{folder}{name}.jinja").decode()
        (to / "templates" / f"{name}.jinja").write_text(template)
        lines = [line(tokenizer, template, messages) for messages in conversations]
        (to / "expected" / f"{name}.txt").write_text("\n".join(lines) + "\n")
        kinds = {kind: sum(kind == it for it in lines) for kind in ["fails", "prefix", "no answer"]}
        print(name, len(set(lines)), kinds)
