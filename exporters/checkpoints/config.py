"""Read a config.json, and numbers in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import SourceError

MAX_JSON = 16 << 20  # bytes; parsing takes 20 times that in memory. The largest real index has 9 MB


def integer(config: Mapping[str, Any], key: str, minimum: int, default: int | None = None) -> int:
    """The integer of at least `minimum` under `key` of a config.json. Raises `SourceError`."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SourceError(f"config.json: {key} is {value!r}, expected an integer of at least {minimum}. Fix it.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `SourceError` if the file has none, or is larger than `MAX_JSON`."""
    try:
        if (size := path.stat().st_size) > MAX_JSON:
            raise SourceError(f"{path}: {size} bytes, expected at most {MAX_JSON}. Download or copy the file again.")
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path}: not a JSON object ({error}). Download or copy the file again.") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}. Download or copy the file again.") from error
