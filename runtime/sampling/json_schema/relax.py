"""Leave out the keywords of a tool's parameters that a grammar cannot enforce; the finished arguments are checked."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from intaglio.errors import EngineError
from intaglio.runtime.sampling.json_schema.document import UnsupportedError, at_pointer
from intaglio.runtime.sampling.json_schema.validator import Validator

MOST = 32  # keywords that are left out of one schema


class Relaxed(NamedTuple):
    """A schema without some of its keywords."""

    schema: Mapping[str, Any]
    left_out: tuple[str, ...]  # such as "uniqueItems at #/properties/tags"


def relaxed(schema: Mapping[str, Any], write: Callable[[str], object]) -> Relaxed:
    """Leave out of `schema` what `write`, which is called with its JSON, cannot enforce and a check can."""
    left_out: list[str] = []
    while len(left_out) < MOST:
        try:
            write(json.dumps(schema, ensure_ascii=False))
        except UnsupportedError as error:
            smaller: Any = copy.deepcopy(schema)
            place = at_pointer(smaller, error.path.removeprefix("#"))
            if error.keyword is None or not isinstance(place, dict) or error.keyword not in place:
                break  # the grammar will name it
            del place[error.keyword]
            schema = smaller
            left_out.append(f"{error.keyword} at {error.path}")
        else:
            break
    return Relaxed(schema, tuple(left_out))


class ArgumentCheck:
    """Checks the arguments of a finished call of one tool."""

    def __init__(self, tool: str, schema: Mapping[str, Any], left_out: tuple[str, ...]):
        """`left_out`: what the grammar of the arguments does not enforce."""
        self._tool, self._schema, self._left_out = tool, schema, left_out

    def __call__(self, arguments: str) -> None:
        """Raise `EngineError` if the JSON text `arguments` is not of the schema."""
        if not Validator(self._schema).valid(json.loads(arguments)):
            keywords = ", ".join(self._left_out)
            raise EngineError(
                f"the model called tool {self._tool!r} with arguments that break {keywords}. "
                "Ask again, or leave the keyword out."
            )
