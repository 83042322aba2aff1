"""Writes config.json and model.safetensors for a serving engine, and reads them back against what it loads."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from eagle3.export.layout import engine_config, engine_tensors
from eagle3.export.spec import ExportParams
from eagle3.layers import engine_layer_ids
from eagle3.target import target_fingerprint
from eagle3.tokenizer import read_config
from eagle3.weights import WEIGHTS, load_drafter
from harness.contract import Context, Result, ToolError, write_json, writing_folder


def main(params: ExportParams, context: Context) -> Result:
    """Write the exported folder, all or nothing."""
    drafter, facts = load_drafter(params.drafter)
    if facts["target_fingerprint"] != target_fingerprint(params.target):
        raise ToolError(
            "the drafter was trained for another target",
            where=params.drafter,
            found=f"'{facts['target_fingerprint'][:12]}' where '{params.target}' has another fingerprint",
            do="Export with the target that the features came from.",
        )
    ids = engine_layer_ids(facts["layers"], params.engine, _architecture(Path(params.target)))
    dtype: torch.dtype = getattr(torch, params.dtype)
    tensors = {
        name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    config = engine_config(drafter.shape, ids, dtype=params.dtype, target=read_config(params.target))
    with writing_folder(context.outputs["model"]) as folder:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        write_json(folder / "config.json", config)
        check(folder)
        size_bytes = (folder / WEIGHTS).stat().st_size
    return Result(
        values={"layer_ids": ids, "size_bytes": size_bytes},
        note=f"{size_bytes / 1e6:.1f} MB for {params.engine}, layer ids {ids}",
    )


def _architecture(target: Path) -> str:
    """The class that serves the target; for a model of text and images that is the outer one."""
    config: dict[str, Any] = json.loads((target / "config.json").read_text(encoding="utf-8"))
    names = config.get("architectures") or []
    if not names:
        raise ToolError("the target doesn't say its architecture", where=str(target / "config.json"))
    return str(names[0])


def check(folder: Path) -> None:
    """Compare an exported folder with what the engine's loader asks for by its config.json.

    The engine skips a name it doesn't know without a word and leaves the weight as it was, so nothing may be missing
    and nothing left over. Raises ToolError naming each such tensor.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    wanted = engine_tensors(config)
    with safe_open(str(folder / WEIGHTS), "pt") as file:
        found = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
        t2d, offsets = file.get_tensor("t2d"), file.get_tensor("d2t")
    wrong = [f"'{name}' missing" for name in wanted.keys() - found.keys()]
    wrong += [f"'{name}' never read" for name in found.keys() - wanted.keys()]
    wrong += [
        f"'{name}' {found[name]} for {shape}" for name, shape in wanted.items() if found.get(name, shape) != shape
    ]
    if not torch.equal(t2d.nonzero()[:, 0], offsets + torch.arange(len(offsets))):
        wrong.append("'d2t' and 't2d' name different tokens")
    if wrong:
        raise ToolError(
            "the engine would not load this as it is",
            where=str(folder),
            found=", ".join(sorted(wrong)),
            do="This is a fault of the export: report it.",
        )
