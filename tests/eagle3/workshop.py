"""What the tests of the pack are made of: talks, a tiny random target, a worker's request."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from harness.contract import Tool

SPECIAL = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
QUESTION = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
ANSWER = ["while", "seven", "wizards", "quietly", "mix", "strange", "potions"]
WORDS = QUESTION + ANSWER
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def talk(number: int) -> list[dict[str, str]]:
    """A short conversation, another one for each number."""
    words = [WORDS[(number * 7 + i * (1 + number % 5)) % len(WORDS)] for i in range(8 + number % 9)]
    half = len(words) // 2
    question, answer = " ".join([str(number), *words[:half]]), " ".join(words[half:])
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def make_target(folder: Path, *, seed: int = 0, template: str | None = TEMPLATE, size: int = 400) -> Path:
    """Write a random Llama of six layers with its own byte-level BPE of `size` tokens into `folder`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<|pad|>", eos_token="<|end|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=size, eos_token_id=tokenizer.eos_token_id, pad_token_id=0, bos_token_id=None, **SHAPE)
    )
    model.save_pretrained(folder)
    return folder


def make_request(tool: Tool, params: dict[str, Any], root: Path, **more: Any) -> dict[str, Any]:
    """What the engine would ask a worker: defaults filled in, output paths resolved, folders made."""
    filled = tool.params(**params).model_dump()
    folder, scratch = root / ".attempt", root / ".scratch"
    folder.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    return {
        "task": tool.name,
        "attempt": 1,
        "tool": tool.name,
        "run": tool.run,
        "params_model": f"{tool.params.__module__}:{tool.params.__qualname__}",
        "params": params,
        "root": str(root),
        "folder": str(folder),
        "scratch": str(scratch),
        "outputs": {name: path.format(**filled) for name, path in tool.outputs.items()},
        "protected": {},
        "fingerprint": "0" * 64,
        **more,
    }


def lines_of(root: Path, name: str = "events.jsonl") -> list[dict[str, Any]]:
    """The events that the last tool run in `root` has reported."""
    return [json.loads(line) for line in (root / ".attempt" / name).read_text().splitlines()]
