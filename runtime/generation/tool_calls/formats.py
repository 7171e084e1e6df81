"""The formats of tool calls, and which one a chat template has."""

from __future__ import annotations

from intaglio.runtime.generation.tool_calls.hermes import HERMES
from intaglio.runtime.generation.tool_calls.llama import LLAMA
from intaglio.runtime.generation.tool_calls.mistral import MISTRAL
from intaglio.runtime.generation.tool_calls.pythonic import PYTHONIC
from intaglio.runtime.generation.tool_calls.qwen_coder import QWEN_CODER
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

FORMATS = (MISTRAL, QWEN_CODER, HERMES, PYTHONIC, LLAMA)  # the first with a sign in the template is taken
DEFAULT = HERMES  # of templates that know tools and have no sign


def format_of(template_source: str) -> ToolCallFormat:
    """Return the format of the calls that a chat template shows to the model."""
    return next((each for each in FORMATS if any(sign in template_source for sign in each.signs)), DEFAULT)
