"""Llama 3.1 and 3.2: one call that is the whole text, after a special token or without it.

<|python_tag|>{"name": "weather", "parameters": {"city": "Ulm"}}
"""

from __future__ import annotations

from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

LLAMA = ToolCallFormat(
    name="llama",
    signs=("<|python_tag|>", '"parameters": '),
    opening="<|python_tag|>",
    before="",
    between=None,  # their templates reject messages with more than one call
    after="",
    syntax=JsonCalls(key="parameters"),
    bare=True,
)
