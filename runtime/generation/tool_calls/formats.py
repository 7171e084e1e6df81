"""The formats of tool calls, and which one a chat template has."""

from __future__ import annotations

import secrets
import string

from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.pythonic import PYTHONIC
from intaglio.runtime.generation.tool_calls.qwen_coder import QWEN_CODER
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

ID_CHARACTERS = 9  # Mistral's templates reject messages with ids of another length


def _short_id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_CHARACTERS))


# Hermes 2 Pro, Qwen2.5, Qwen3, SmolLM3: each call between two tags.
#
# <tool_call>
# {"name": "weather", "arguments": {"city": "Ulm"}}
# </tool_call>
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
# Llama 3.1 and 3.2: one call that is the whole text, after a special token or without it.
#
# <|python_tag|>{"name": "weather", "parameters": {"city": "Ulm"}}
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
# Mistral and Mixtral with the tokenizer of version 3, Nemo: a list of calls after a special token.
#
# [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ulm"}}]
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
FORMATS = (MISTRAL, QWEN_CODER, HERMES, PYTHONIC, LLAMA)  # the first with a sign in the template is taken
DEFAULT = HERMES  # of templates that know tools and have no sign


def format_of(template_source: str) -> ToolCallFormat:
    """Return the format of the calls that a chat template shows to the model."""
    return next((each for each in FORMATS if any(sign in template_source for sign in each.signs)), DEFAULT)
