"""Read a JSON file that holds one object, such as a config.json, or the record of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from intaglio.errors import SourceError, one_line
from intaglio.files.input_files import read_text
from intaglio.files.json_decoder import json_decoder

Record = TypeVar("Record")

MAX_JSON = 16 << 20  # bytes; parsing takes 20 times that in memory. The largest real index has 9 MB


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `SourceError` if the file has none, or is larger than `MAX_JSON`."""
    text = read_text(path, "", MAX_JSON, SourceError, "Download or copy the file again.")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{path}: not a JSON object ({error}). Download or copy the file again.") from error


def read_record(path: Path, kind: type[Record], fix: str) -> Record:
    """The struct of this `kind` in `path`. Raises `SourceError`, which ends with how to `fix` it."""
    try:
        return json_decoder(kind).decode(read_text(path, error=SourceError, fix=fix))
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{path}: cannot be read ({one_line(error, 120)}). {fix}") from error
