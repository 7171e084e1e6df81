"""Read the JSON files next to a tokenizer: its configuration, and the names of special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, one_line
from intaglio.files.input_files import read_text

MODEL_CONFIGURATION = "config.json"
CONFIGURATION = "tokenizer_config.json"
MAX_BYTES = 8 << 20  # of one file; parsing takes 20 times that in memory
SPECIAL_TOKENS = "special_tokens_map.json"  # used by older checkpoints for the names of special tokens


def read_object(bundle: Bundle, name: str) -> dict[str, Any]:
    """The JSON object in a file of the bundle; empty if there is none. Raises `BundleError` for invalid JSON."""
    if name not in bundle.manifest.files:
        return {}
    path = bundle.path / name
    text = read_small(path)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{path}: not readable JSON ({one_line(error)}). Re-export the bundle.") from error
    return found if isinstance(found, dict) else {}


def read_small(path: Path) -> str:
    """The text of a file next to a tokenizer. Raises `BundleError` above `MAX_BYTES`, or if it is not UTF-8."""
    return read_text(path, "", MAX_BYTES, BundleError, "Re-export the bundle.")


def special_tokens(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens in a tokenizer's configuration: "bos_token" -> "<s>"."""
    contents = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in configuration.items()
        if name.endswith("_token")
    }
    return {name: content for name, content in contents.items() if isinstance(content, str)}
