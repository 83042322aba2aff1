"""The tokenizer of a model folder: loading, fingerprint, and the token ids that end an answer."""

import json
from pathlib import Path
from typing import Any

from harness.contract import ToolError, digest_file, digest_json

FAST_FILE = "tokenizer.json"
SLOW_FILES = ("tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "added_tokens.json")


def tokenizer_fingerprint(path: Path | str) -> str:
    """SHA-256 of what decides which ids a text becomes, for the model folder `path`; needs no torch.

    `tokenizer.json` counts without its truncation and padding settings, which a run may leave behind; the chat
    template doesn't count, it has a digest of its own. Raises ToolError when the folder holds no tokenizer.
    """
    folder = Path(path)
    fast = folder / FAST_FILE
    if fast.is_file():
        settings = _read_json(fast)
        return digest_json({key: value for key, value in settings.items() if key not in ("truncation", "padding")})
    slow = {name: digest_file(folder / name) for name in SLOW_FILES if (folder / name).is_file()}
    if not slow:
        raise ToolError(
            "no tokenizer there",
            where=str(folder),
            found=", ".join(sorted(p.name for p in folder.glob("*"))[:8]) or "no such folder, or an empty one",
            do=f"Give the folder of a model, one that holds '{FAST_FILE}' or '{SLOW_FILES[0]}'.",
        )
    return digest_json(slow)


def load_tokenizer(path: Path | str) -> Any:
    """The transformers tokenizer of the model folder `path`. Raises ToolError when there is none."""
    tokenizer_fingerprint(path)  # a missing one is told in our words
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def stop_ids(path: Path | str, tokenizer: Any) -> list[int]:
    """Ids that end an answer, ascending: the tokenizer's end token and those of generation_config.json."""
    ids = {tokenizer.eos_token_id}
    generation = Path(path) / "generation_config.json"
    if generation.is_file():
        named = _read_json(generation).get("eos_token_id")
        ids.update(named if isinstance(named, list) else [named])
    return sorted(i for i in ids if i is not None)


def read_config(path: Path | str) -> dict[str, Any]:
    """The text model's part of a model folder's config.json. Raises ToolError when it is missing or broken."""
    file = Path(path) / "config.json"
    if not file.is_file():
        raise ToolError("no model there", where=str(path), found="no config.json", do="Give the folder of a model.")
    config = _read_json(file)
    text: dict[str, Any] = config.get("text_config", config)
    return text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ToolError(
            "can't be read as JSON", where=str(path), found=str(error), do="Fetch the file again."
        ) from None
    if not isinstance(value, dict):
        raise ToolError("is not a JSON object", where=str(path), found=type(value).__name__, do="Fetch the file again.")
    return value
