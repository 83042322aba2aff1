"""The target model: raw states after any layer, logits of any rows, seeded batched generation, fingerprint."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from eagle3.tokenizer import load_tokenizer, read_config, stop_ids, tokenizer_fingerprint
from harness.contract import ToolError, digest_file, digest_json

__all__ = ["Target", "load_target", "target_fingerprint", "tokenizer_fingerprint"]

BLOCK_BYTES = 64 * 1024
NUM_BLOCKS = 256
WEIGHTS = ("*.safetensors", "*.bin")


def target_fingerprint(path: Path | str) -> str:
    """SHA-256 of a model folder's config.json and weights.

    Of a weight file, its size and 256 evenly spaced blocks of 64 KiB count (all of it up to 16 MiB), so that a model
    of a terabyte takes seconds: in a file of 5 GB every tensor of 20 MB and more is sampled.
    """
    folder = Path(path)
    read_config(folder)
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    return digest_json([digest_file(folder / "config.json"), [(file.name, _sampled_digest(file)) for file in files]])


def _sampled_digest(path: Path) -> str:
    size = path.stat().st_size
    stride = max(BLOCK_BYTES, -(-size // NUM_BLOCKS))
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, stride):
            file.seek(start)
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


@dataclass(frozen=True)
class Target:
    """A causal language model of transformers, opened for reading; made by `load_target`."""

    path: Path
    model: Any
    tokenizer: Any
    fingerprint: str
    tokenizer_fingerprint: str
    stop_ids: list[int]

    @property
    def config(self) -> Any:
        return self.model.config.get_text_config()

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """V, the rows of the output head; the tokenizer may know fewer."""
        return int(self.config.vocab_size)

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def pad_id(self) -> int:
        """An id to fill rows with; it is always masked."""
        return int(self.tokenizer.pad_token_id or 0)

    @torch.inference_mode()
    def states(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        layers: Sequence[int],
        *,
        cache: Any = None,
    ) -> list[torch.Tensor]:
        """The raw residual stream after each of `layers`, in their order: tensors [B, T, H] of the model's dtype.

        Layer k counts decoder layers from 0; its output is transformers' `hidden_states[k + 1]`, but for the last
        layer it is taken before the final norm. Rows are padded on the right; `attention_mask` [B, T] is 1 on tokens.
        With a transformers `cache` the ids follow what it holds, and are added to it.
        """
        wrong = [layer for layer in layers if not 0 <= layer < self.num_layers]
        if wrong:
            raise ToolError(
                "the target has no such layer",
                where=str(self.path),
                found=str(wrong)[1:-1],
                do=f"Layers count from 0 to {self.num_layers - 1}.",
            )
        decoder = self.model.get_decoder()
        seen: dict[int, torch.Tensor] = {}

        def keep(layer: int) -> Any:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                seen[layer] = output[0] if isinstance(output, tuple) else output

            return hook

        handles = [decoder.layers[layer].register_forward_hook(keep(layer)) for layer in set(layers)]
        try:
            decoder(input_ids, attention_mask, None, cache, use_cache=cache is not None)
        finally:
            for handle in handles:
                handle.remove()
        return [seen[layer] for layer in layers]

    def head(self, raw_final: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [..., V] of the raw final state [..., H]: final norm, then the output head.

        With `rows` int64 [D] only those rows of the vocabulary: [..., D].
        """
        output = self.model.get_output_embeddings()
        weight, bias = output.weight, getattr(output, "bias", None)
        if rows is not None:
            weight, bias = weight[rows], None if bias is None else bias[rows]
        return F.linear(self.model.get_decoder().norm(raw_final), weight, bias)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        seeds: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """The continuation of each prompt, ending with a stop id if one was reached within its `max_new_tokens`.

        Greedy at temperature 0. Otherwise row i draws from its own generator, `seeds[i]` (default i), by the
        Gumbel-max trick, so that what a row draws doesn't depend on the rows beside it.
        """
        if not prompts:
            return []
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds or range(len(prompts))]
        answers: list[list[int]] = [[] for _ in prompts]
        alive = {row for row, limit in enumerate(limits) if limit > 0}
        width = max(map(len, prompts))
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + list(p) for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        position = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.config)
        while alive:
            # by place: the cache's parameter has one name before transformers 5.24 and another since
            logits = self.model(ids, mask, position, cache, logits_to_keep=1).logits[:, -1]
            if temperature > 0:
                noise = torch.stack([torch.rand(logits.shape[-1], generator=g) for g in generators])
                logits = logits / temperature - noise.clamp(min=1e-20).log().neg().log().to(logits)
            ids = logits.argmax(-1, keepdim=True)
            for row in sorted(alive):
                answers[row].append(int(ids[row]))
                if answers[row][-1] in self.stop_ids or len(answers[row]) == limits[row]:
                    alive.discard(row)
            mask = F.pad(mask, (0, 1), value=1)
            position = position[:, -1:] + 1
        return answers


def load_target(path: Path | str, *, dtype: str = "float32", device: str = "cpu") -> Target:
    """Open the model folder `path` for inference.

    Raises ToolError when there is no model, or one whose logits aren't norm + linear head of the last layer's state
    (scaled or capped logits, another layout): a drafter would learn from wrong logits without a word.
    """
    folder = Path(path)
    fingerprint = target_fingerprint(folder)
    tokenizer = load_tokenizer(folder)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # "Loading weights" would fill a log
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=getattr(torch, dtype), local_files_only=True)
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    target = Target(
        path=folder,
        model=model,
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(folder),
        stop_ids=stop_ids(folder, tokenizer),
    )
    _probe(target)
    return target


@torch.inference_mode()
def _probe(target: Target) -> None:
    """Compare `head(states)` with the model's own logits on three tokens."""
    decoder = target.model.get_decoder()
    architecture = type(target.model).__name__
    if not (hasattr(decoder, "layers") and hasattr(decoder, "norm") and target.model.get_output_embeddings()):
        raise ToolError("the target's layout is unknown", where=str(target.path), found=architecture)
    ids = torch.arange(3, device=target.device)[None] % target.vocab_size
    own = target.model(input_ids=ids, use_cache=False).logits.float()
    ours = target.head(target.states(ids, None, [target.num_layers - 1])[0]).float()
    error = float((own - ours).abs().max() / own.abs().max().clamp(min=1e-6))
    if not error < 0.02:
        raise ToolError(
            "the target's logits are not norm + head of its last state",
            where=str(target.path),
            found=f"{architecture}, relative difference {error:.3g}",
            do="Only such targets can be drafted for.",
        )
