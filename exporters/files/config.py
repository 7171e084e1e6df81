"""Read a config.json, and numbers in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import SourceError
from intaglio.files.input_files import read_text

MAX_JSON = 16 << 20  # bytes; parsing takes 20 times that in memory. The largest real index has 9 MB


def integer(
    config: Mapping[str, Any], key: str, minimum: int, default: int | None = None, where: str = "config.json"
) -> int:
    """The integer of at least `minimum` under `key` of the settings in the file `where`. Raises `SourceError`."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SourceError(f"{where}: {key} is {value!r}, expected an integer of at least {minimum}. Fix it.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `SourceError` if the file has none, or is larger than `MAX_JSON`."""
    text = read_text(path, "", MAX_JSON, SourceError, "Download or copy the file again.")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{path}: not a JSON object ({error}). Download or copy the file again.") from error
