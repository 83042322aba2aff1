"""A feature set: hidden states of every sample in speculators' v1 files, with a manifest of their digests."""

import hashlib
import io
import json
import os
import pickle  # noqa: TID251 - for the name of the error that torch.load raises
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.contract import ToolError, digest_file, fsync_folder, write_json, write_text, writing

CONFIG, LENGTHS, MANIFEST = "data_config.json", "sample_lengths.json", "manifest.jsonl"
SHARD = 1000  # files a folder
KEYS = (
    "num_samples",
    "layers",
    "final",
    "dtype",
    "hidden_size",
    "target_dtype",
    "batch_tokens",
    "target_fingerprint",
    "tokenizer_fingerprint",
    "samples_digest",
)  # without which a set can't be used


@dataclass(frozen=True)
class Features:
    """One sample: `input_ids`, `loss_mask` int64 [T]; `hidden_states` a tensor [T, H] a layer, the final one last."""

    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    hidden_states: list[torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """A line of the manifest: what a file was when it was written."""

    index: int
    path: str
    size: int
    mtime_ns: int
    sha256: str
    num_tokens: int

    def stands(self, folder: Path) -> bool:
        """Whether the file has still the size and time that it was written with."""
        try:
            status = (folder / self.path).stat()
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)


def file_name(index: int) -> str:
    """Path of a sample's file inside the feature set."""
    return f"{index // SHARD:05d}/data_{index}.pt"


def read_manifest(folder: Path) -> dict[int, Entry]:
    """The newest entry of each sample; a torn last line, left by a kill, is passed over."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[entry.index] = entry
    return found


def load_features(path: Path) -> Features:
    """One file, memory-mapped. Raises ToolError when it is missing, torn or no such file."""
    try:
        content = torch.load(path, mmap=True, weights_only=True)
        features = Features(content["input_ids"], content["loss_mask"], list(content["hidden_states"]))
        if not all(torch.is_tensor(part) for part in (features.input_ids, features.loss_mask, *features.hidden_states)):
            raise TypeError("something in it is no tensor")
    except FileNotFoundError:
        raise ToolError("a feature file is missing", where=str(path), do="Run 'verify' with repair.") from None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.UnpicklingError) as error:
        found = str(error).partition("\n")[0]
        raise ToolError(
            "a feature file is damaged", where=str(path), found=found, do="Run 'verify' with repair."
        ) from None
    return features


@dataclass(frozen=True)
class FeatureSet:
    """An opened, complete feature set; `features[i]` is sample i."""

    path: Path
    config: dict[str, Any]
    entries: dict[int, Entry]

    def __len__(self) -> int:
        return int(self.config["num_samples"])

    def __getitem__(self, index: int) -> Features:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return load_features(self.path / file_name(index))

    @property
    def layers(self) -> list[int]:
        """Output indices of the layers, the final one last."""
        return list(self.config["layers"])

    @property
    def final(self) -> str:
        """Whether the final state is "raw" (before the target's last norm) or "normed"."""
        return str(self.config["final"])

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.config["dtype"])
        return dtype

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, int64 [N]."""
        return np.array([self.entries[index].num_tokens for index in range(len(self))], np.int64)

    @property
    def target_fingerprint(self) -> str:
        return str(self.config["target_fingerprint"])

    @property
    def tokenizer_fingerprint(self) -> str:
        return str(self.config["tokenizer_fingerprint"])

    @property
    def samples_digest(self) -> str:
        return str(self.config["samples_digest"])


def read_config(folder: Path) -> dict[str, Any]:
    """The set's data_config.json. Raises ToolError when there is none, or none that `extract` has written."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ToolError(
            "no feature set there", where=str(folder), found=f"no '{CONFIG}'", do="Run 'extract'."
        ) from None
    except ValueError as error:
        raise ToolError(
            "the feature set is damaged", where=str(folder / CONFIG), found=str(error), do="Delete it, run 'extract'."
        ) from None
    lacking = [key for key in KEYS if key not in config]
    if lacking:
        raise ToolError("that is no feature set of 'extract'", where=str(folder / CONFIG), found=f"no '{lacking[0]}'")
    return config


def open_features(path: Path | str) -> FeatureSet:
    """Open a feature set. Raises ToolError when it is missing or incomplete; its files are not read yet."""
    folder = Path(path)
    opened = FeatureSet(folder, read_config(folder), read_manifest(folder))
    missing = [index for index in range(len(opened)) if index not in opened.entries]
    if missing:
        raise ToolError(
            "the feature set is incomplete",
            where=str(folder),
            found=f"{len(missing)} of {len(opened)} samples missing, the first is {missing[0]}",
            do="Run 'extract' again: it goes on there.",
        )
    return opened


class FeatureWriter:
    """Writes a feature set file by file, each atomically, and goes on with what is there already.

    `identity` holds all that the states depend on; what was written with another identity is removed first.
    `facts` are kept beside it.
    """

    def __init__(self, path: Path | str, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        known = read_config(self.path) if (self.path / CONFIG).exists() else {}
        if not known or any(known.get(name) != value for name, value in identity.items()):
            self._clear()
            write_json(self.path / CONFIG, _config(identity, facts))
        for left in self.path.rglob(".*.partial"):
            left.unlink()
        known_entries = read_manifest(self.path)
        self.entries = {index: each for index, each in known_entries.items() if index < identity["num_samples"]}
        self._mend_manifest()

    def _clear(self) -> None:
        """Remove what another identity has left; the manifest first, so that after a kill no old file is trusted."""
        for file in (self.path / MANIFEST, self.path / LENGTHS, *self.path.glob("*/data_*.pt")):
            file.unlink(missing_ok=True)
        fsync_folder(self.path)

    def _mend_manifest(self) -> None:
        """End a line that a kill has torn, so that the next one stands by itself."""
        manifest = self.path / MANIFEST
        if manifest.exists() and manifest.stat().st_size and not manifest.read_bytes().endswith(b"\n"):
            with manifest.open("a", encoding="utf-8") as file:
                file.write("\n")

    def missing(self, num_samples: int) -> list[int]:
        """The samples that are still to do. A file whose size or time has changed is digested before it is trusted."""
        found = []
        for index in range(num_samples):
            entry = self.entries.get(index)
            if entry is None or not (entry.stands(self.path) or self._still_good(entry)):
                found.append(index)
        return found

    def _still_good(self, entry: Entry) -> bool:
        file = self.path / entry.path
        if not file.is_file() or digest_file(file) != entry.sha256:
            return False
        self._append(entry.index, entry.sha256, entry.num_tokens)
        return True

    def write(self, index: int, features: Features) -> None:
        """Write one sample; after this it is there whatever happens."""
        buffer = io.BytesIO()
        content = {
            "input_ids": features.input_ids.long().contiguous(),
            "loss_mask": features.loss_mask.long().contiguous(),
            "hidden_states": [state.contiguous().clone() for state in features.hidden_states],
        }
        torch.save(content, buffer)
        file = self.path / file_name(index)
        with writing(file) as partial:
            partial.write_bytes(buffer.getbuffer())
        self._append(index, hashlib.sha256(buffer.getbuffer()).hexdigest(), len(features.input_ids))

    def _append(self, index: int, sha256: str, num_tokens: int) -> None:
        status = (self.path / file_name(index)).stat()
        entry = Entry(index, file_name(index), status.st_size, status.st_mtime_ns, sha256, num_tokens)
        with (self.path / MANIFEST).open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.entries[index] = entry

    def finish(self) -> None:
        """Write the lengths, and the manifest with one line a sample."""
        ordered = [self.entries[index] for index in sorted(self.entries)]
        write_json(self.path / LENGTHS, {str(entry.index): entry.num_tokens for entry in ordered})
        write_text(self.path / MANIFEST, "".join(json.dumps(vars(entry)) + "\n" for entry in ordered))

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries.values())


def _config(identity: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """data_config.json: speculators' keys where it has them, and our own; no date, so that equal sets are equal."""
    layers: Sequence[int] = identity["layers"]
    return {
        **facts,
        **identity,
        "version": "2.0",
        "hidden_states": {"layer_ids": list(layers), "description": "outputs of decoder layers, the final one last"},
        "format": {
            "file_pattern": "data_{idx}.pt",
            "schema": {"input_ids": "int64 [T]", "loss_mask": "int64 [T]", "hidden_states": "list of [T, H]"},
        },
    }
