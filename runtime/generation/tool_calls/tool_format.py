"""What a format of tool calls is: the text around JSON objects with a name and arguments."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass


def long_id() -> str:
    """Return a new id of a tool call, as OpenAI's API makes them."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True)
class ToolCallFormat:
    """How a family of models writes tool calls: `opening`, `before`, a call, `between`, a call, ..., `after`.

    A call is a JSON object {"name": ..., "arguments": {...}}. The texts are as the model was trained to write them;
    what is read may have other whitespace.
    """

    name: str
    signs: tuple[str, ...]  # a chat template with one of these substrings has this format
    opening: str  # marker before the first call
    before: str
    between: str | None  # None: one call at most
    after: str
    closing: str | None = None  # marker after a call
    arguments: str = "arguments"  # the key of the arguments
    bare: bool = False  # a call can be the whole text, without `opening`
    new_id: Callable[[], str] = long_id

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers, which may be special tokens of the tokenizer."""
        return (self.opening, self.closing) if self.closing is not None else (self.opening,)
