"""Reading numbers from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intaglio.errors import SourceError


def integer(config: Mapping[str, Any], key: str, minimum: int, default: int | None = None) -> int:
    """The whole number of at least `minimum` that a config.json has under `key`. Raises `SourceError`."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SourceError(f"config.json: {key} is {value!r}, expected a whole number of at least {minimum}. Fix it.")
    return value
