"""Hermes 2 Pro, Qwen2.5, Qwen3, SmolLM3: each call between two tags.

<tool_call>
{"name": "weather", "arguments": {"city": "Ulm"}}
</tool_call>
"""

from __future__ import annotations

from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

HERMES = ToolCallFormat(
    name="hermes",
    signs=("<tool_call>",),
    opening="<tool_call>",
    before="\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
    syntax=JsonCalls(),
    closing="</tool_call>",
)
