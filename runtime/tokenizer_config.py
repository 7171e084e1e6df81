"""Read the JSON files next to a tokenizer: its configuration, and the names of special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from intaglio.bundle import Bundle
from intaglio.errors import BundleError, one_line

MODEL_CONFIGURATION = "config.json"
CONFIGURATION = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"  # used by older checkpoints for the names of special tokens


def read_object(bundle: Bundle, name: str) -> dict[str, Any]:
    """The JSON object in a file of the bundle; empty if there is none. Raises `BundleError` for invalid JSON."""
    if name not in bundle.manifest.files:
        return {}
    path = bundle.path / name
    try:
        found = msgspec.json.decode(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 text (byte {error.start}). Re-export the bundle.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{path}: not readable JSON ({one_line(error)}). Re-export the bundle.") from error
    return found if isinstance(found, dict) else {}


def special_tokens(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens in a tokenizer's configuration: "bos_token" -> "<s>"."""
    contents = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in configuration.items()
        if name.endswith("_token")
    }
    return {name: content for name, content in contents.items() if isinstance(content, str)}
