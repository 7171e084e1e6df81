"""Mistral and Mixtral with the tokenizer of version 3, Nemo: a list of calls after a special token.

[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ulm"}}]
"""

from __future__ import annotations

import secrets
import string

from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

ID_CHARACTERS = 9  # the templates reject messages with ids of another length


def _short_id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_CHARACTERS))


MISTRAL = ToolCallFormat(
    name="mistral",
    signs=("[TOOL_CALLS]",),
    opening="[TOOL_CALLS]",
    before=" [",
    between=", ",
    after="]",
    syntax=JsonCalls(),
    new_id=_short_id,
)
