"""A drafter's weights: untrained, on disk, or taken over from another EAGLE-3 checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle3.model import Drafter, Shape
from eagle3.target import Target
from eagle3.vocabulary import Vocabulary
from harness.contract import ToolError, write_json, writing_folder

WEIGHTS, CONFIG = "model.safetensors", "drafter.json"


def new_drafter(shape: Shape, vocabulary: Vocabulary, target: Target, *, seed: int) -> Drafter:
    """An untrained drafter: random, but norm and lm_head start as the target's own (the draft vocabulary's rows)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drafter = Drafter(shape, vocabulary)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(target.model.get_output_embeddings().weight[drafter.target_ids])
        drafter.norm.weight.copy_(target.model.get_decoder().norm.weight)
    return drafter


def save_drafter(path: Path | str, drafter: Drafter, facts: Mapping[str, Any]) -> None:
    """Write the folder `path`, all or nothing: weights, and drafter.json with the shape and `facts`."""
    with writing_folder(Path(path)) as folder:
        save_file({name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}, folder / WEIGHTS)
        write_json(folder / CONFIG, {**facts, "shape": asdict(drafter.shape)})


def load_drafter(path: Path | str) -> tuple[Drafter, dict[str, Any]]:
    """The drafter that `train` wrote at `path`, for inference, and its facts. Raises ToolError where there is none."""
    folder = Path(path)
    try:
        facts = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
        vocabulary = Vocabulary(tensors["t2d"].numpy(), tensors["d2t"].numpy(), facts["tokenizer_fingerprint"])
        drafter = Drafter(Shape(**facts["shape"]), vocabulary)
        drafter.load_state_dict(tensors)
    except FileNotFoundError as error:
        found = f"no '{Path(error.filename).name}'" if error.filename else str(error)
        raise ToolError("no drafter there", where=str(folder), found=found, do="Run 'train'.") from None
    except (ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise ToolError("the drafter is damaged", where=str(folder), found=str(error), do="Run 'train'.") from None
    return drafter.eval().requires_grad_(requires_grad=False), facts


def load_weights(drafter: Drafter, path: Path | str) -> int:
    """Start `drafter` from the EAGLE-3 checkpoint `path`: a folder with model.safetensors, ours or from elsewhere.

    Rows of lm_head are matched by target id, for the checkpoint may draft another vocabulary; rows that it lacks stay
    as they are. Returns how many rows were found. Raises ToolError when a tensor is missing or of another shape.
    """
    file = Path(path) / WEIGHTS
    if not file.is_file():
        raise ToolError("no checkpoint to start from", where=str(path), found=f"no '{WEIGHTS}'")
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in load_file(file).items()}
    own = drafter.state_dict()
    head = tensors.pop("lm_head.weight", torch.empty(0, 0))
    offsets = tensors.pop("d2t", torch.zeros(len(head), dtype=torch.int64))
    wanted = [name for name in own if name not in ("lm_head.weight", "t2d", "d2t")]
    wrong = [name for name in wanted if name not in tensors or tensors[name].shape != own[name].shape]
    if wrong or head.shape[1] != drafter.shape.hidden_size:
        raise ToolError(
            "the checkpoint doesn't fit the drafter",
            where=str(file),
            found=", ".join(f"'{name}' {list(tensors[name].shape) if name in tensors else 'missing'}" for name in wrong)
            or f"'lm_head.weight' {list(head.shape)}",
            do="Give the drafter the checkpoint's num_heads, num_kv_heads and intermediate_size.",
        )
    row_of = {int(token): row for row, token in enumerate(offsets + torch.arange(len(head)))}
    found = [(row, row_of[token]) for row, token in enumerate(drafter.target_ids.tolist()) if token in row_of]
    with torch.no_grad():
        for name in wanted:
            own[name].copy_(tensors[name])
        own["lm_head.weight"][[row for row, _ in found]] = head[[row for _, row in found]].to(own["lm_head.weight"])
    return len(found)
