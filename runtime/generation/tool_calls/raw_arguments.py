"""Arguments that a model writes as raw text: as JSON, by the schema of their tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.validator import Validator

CONSTANTS = {"None": "null", "False": "false", "True": "true"}  # templates may write those of Python


def is_text(schema: Mapping[str, Any], name: str) -> bool:
    """Whether the argument `name` can only be a string. `schema`: of all arguments."""
    validator = Validator(schema)
    values = validator.values(validator.member(name))
    return bool(values.texts) and replace(values, texts=()).empty


def as_json(schema: Mapping[str, Any], name: str, text: str) -> str:
    """Return the argument `name` as JSON: a valid value that is no string, else the text itself if it may be a string.

    An argument that cannot be a string is the JSON value, valid or not; what is not JSON is the text.
    """
    validator = Validator(schema)
    found = CONSTANTS.get(text, text)
    try:
        node = validator.member(name)
        value = json.loads(found, parse_constant=_reject)
        if (not isinstance(value, str) and validator.valid(value, node)) or not validator.values(node).texts:
            return found.strip()
    except (ValueError, RecursionError, UnsupportedError):
        pass
    return json.dumps(text, ensure_ascii=False)


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
