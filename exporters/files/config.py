"""Numbers in a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intaglio.errors import SourceError


def integer(
    config: Mapping[str, Any], key: str, minimum: int, default: int | None = None, where: str = "config.json"
) -> int:
    """The integer of at least `minimum` under `key` of the settings in the file `where`. Raises `SourceError`."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SourceError(f"{where}: {key} is {value!r}, expected an integer of at least {minimum}. Fix it.")
    return value
