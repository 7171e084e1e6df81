"""Read a JSON file that holds one object, such as a config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import SourceError
from intaglio.files.input_files import read_text

MAX_JSON = 16 << 20  # bytes; parsing takes 20 times that in memory. The largest real index has 9 MB


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `SourceError` if the file has none, or is larger than `MAX_JSON`."""
    text = read_text(path, "", MAX_JSON, SourceError, "Download or copy the file again.")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{path}: not a JSON object ({error}). Download or copy the file again.") from error
