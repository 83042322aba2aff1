"""Trains the target: tokenizer, text, model, and the conversations that were held back."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from eagle3.tiny_target.corpus import Piece, pieces, text_files
from eagle3.tiny_target.muon import Muon
from eagle3.tiny_target.spec import TinyTargetParams
from harness.contract import Context, Result, writing, writing_folder

PAD, END = "<|pad|>", "<|end|>"
SPECIAL = [PAD, "<|system|>", "<|user|>", "<|assistant|>", END]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOKENIZER_CHARACTERS = 3_000_000  # what the tokenizer is learnt from; more changes little
CHARACTERS_PER_TOKEN = 2.8
WARMUP_STEPS = 20
NUM_HELD_BACK_ROWS = 64


@dataclass(frozen=True)
class Text:
    """Pieces held back for conversations, and the files that are trained on."""

    held_back: list[Piece]
    files: list[Path]
    size: int  # characters of a piece

    def pieces(self) -> Iterator[Piece]:
        return chain.from_iterable(pieces(path, self.size) for path in self.files)


def main(params: TinyTargetParams, context: Context) -> Result:
    """Train, going on from the progress checkpoint where one was kept, and write model and conversations."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a log is no terminal
    torch.set_num_threads(params.threads)
    torch.manual_seed(params.seed)
    context.catch_stop()
    text = _read(params)
    tokenizer = _tokenizer(text, params, context.scratch / "tokenizer")
    rows = _rows(text, tokenizer, params)
    context.say(f"{len(text.files)} files, {rows.size:,} tokens, {len(text.held_back)} conversations held back")
    model = _model(tokenizer, params)
    _train(model, rows, params, context)
    loss = _held_back_loss(model, tokenizer, text.held_back, params)
    with writing_folder(context.outputs["target"]) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    with writing(context.outputs["conversations"]) as path, path.open("w", encoding="utf-8") as file:
        for number, piece in enumerate(text.held_back):
            file.write(json.dumps({"id": f"piece-{number}", "messages": piece.messages}, ensure_ascii=False) + "\n")
    return Result(
        values={"loss": loss, "num_conversations": len(text.held_back)},
        metrics={"loss": loss, "num_parameters": float(model.num_parameters())},
        note=f"{model.num_parameters() / 1e6:.1f} M parameters, held-back loss {loss:.2f} a token",
    )


def _read(params: TinyTargetParams) -> Text:
    """Hold back whole files until the conversations are filled, and at most half of the files."""
    files = text_files(params.source, params.seed)
    size = int(params.sequence_length * CHARACTERS_PER_TOKEN)
    held_back: list[Piece] = []
    taken = 0
    while len(held_back) < params.num_conversations and taken < len(files) // 2:
        held_back += pieces(files[taken], size)
        taken += 1
    return Text(held_back[: params.num_conversations], files[taken:], size)


def _tokenizer(text: Text, params: TinyTargetParams, kept: Path) -> Any:
    """A byte-level BPE learnt from the text, kept for the next attempt."""
    if not kept.exists():
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=params.vocab_size,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        num_pieces = TOKENIZER_CHARACTERS // text.size
        bpe.train_from_iterator((p.question + "\n" + p.answer for p in islice(text.pieces(), num_pieces)), trainer)
        made: Any = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=PAD, eos_token=END)  # type: ignore[no-untyped-call]
        made.chat_template = TEMPLATE
        with writing_folder(kept) as folder:
            made.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(kept)


def _rows(text: Text, tokenizer: Any, params: TinyTargetParams) -> NDArray[np.int64]:
    """Training rows int64 [N, L + 1]: rendered pieces end to end, no more than the steps can read."""
    length = params.sequence_length + 1
    wanted = params.steps * params.batch_size * length
    ids: list[int] = []
    stream = text.pieces()
    while len(ids) < wanted and (batch := list(islice(stream, 500))):
        rendered = [tokenizer.apply_chat_template(piece.messages, tokenize=False) for piece in batch]
        for encoded in tokenizer(rendered, add_special_tokens=False)["input_ids"]:
            ids += encoded
    ids += ids * (length // max(1, len(ids)))  # a text shorter than one row is read again
    whole = len(ids) // length
    return np.array(ids[: whole * length], np.int64).reshape(whole, length)


def _model(tokenizer: Any, params: TinyTargetParams) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden_size,
        intermediate_size=-(-params.hidden_size * 8 // 3 // 16) * 16,
        num_hidden_layers=params.num_layers,
        num_attention_heads=params.num_heads,
        num_key_value_heads=params.num_heads,
        max_position_embeddings=max(2048, 2 * params.sequence_length),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def _train(model: Any, rows: NDArray[np.int64], params: TinyTargetParams, context: Context) -> None:
    """Warm-up and linear decay; a step's rows depend on nothing but its number and the seed."""
    optimizers = _optimizers(model, params)
    kept = context.scratch / "progress.pt"
    first = 0
    if kept.exists():
        progress = torch.load(kept, weights_only=True)
        model.load_state_dict(progress["model"])
        for optimizer, state in zip(optimizers, progress["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        first = progress["step"]
        context.say(f"going on at step {first} of {params.steps}")

    def save(step: int) -> None:
        states = [optimizer.state_dict() for optimizer in optimizers]
        with writing(kept) as path:
            torch.save({"model": model.state_dict(), "optimizers": states, "step": step}, path)

    model.train()
    for step in range(first, params.steps):
        context.stop_point(partial(save, step))
        batch = torch.from_numpy(rows[_row_numbers(step, len(rows), params)])
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = params.learning_rate * _rate(step, params.steps)
            optimizer.step()
            optimizer.zero_grad()
        context.progress(step + 1, params.steps, unit="steps")
        if step % 10 == 0 or step + 1 == params.steps:
            context.metric(step=step, loss=float(loss.detach()))
        if (step + 1) % params.checkpoint_every == 0:
            save(step + 1)
    model.eval()


def _optimizers(model: LlamaForCausalLM, params: TinyTargetParams) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, which halves the steps that a loss takes; AdamW for the rest."""
    inner = [param for param in model.model.layers.parameters() if param.ndim == 2]
    known = {id(param) for param in inner}
    rest = [param for param in model.parameters() if id(param) not in known]
    adam = torch.optim.AdamW(rest, lr=params.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(inner, lr=params.learning_rate), adam]


def _rate(step: int, steps: int) -> float:
    """Part of the learning rate at `step`: up in a straight line, then down to 2 %."""
    warmup = min(WARMUP_STEPS, max(1, steps // 10))
    return min((step + 1) / warmup, max(0.02, (steps - step) / max(1, steps - warmup)))


def _row_numbers(step: int, num_rows: int, params: TinyTargetParams) -> NDArray[np.int64]:
    """Which rows step `step` reads: every row once, in a new order each time round."""
    places = np.arange(step * params.batch_size, (step + 1) * params.batch_size)
    return np.array([_order(int(e), num_rows, params.seed)[p] for e, p in zip(*divmod(places, num_rows), strict=True)])


def _order(epoch: int, num_rows: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


@torch.inference_mode()
def _held_back_loss(model: LlamaForCausalLM, tokenizer: Any, held_back: list[Piece], params: TinyTargetParams) -> float:
    """Cross entropy per token, in nats, of pieces that were not trained on, one by one."""
    total, count = 0.0, 0
    for piece in held_back[:NUM_HELD_BACK_ROWS]:
        text = tokenizer.apply_chat_template(piece.messages, tokenize=False)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"][: params.sequence_length + 1]])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return total / count
