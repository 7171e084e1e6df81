"""What a format of tool calls is: the syntax of one call, and the text around calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from intaglio.runtime.generation.tool_calls.call_text import CallText, Found
from intaglio.runtime.sampling.json_schema.rules import Notation


def long_id() -> str:
    """Return a new id of a tool call, as OpenAI's API makes them."""
    return f"call_{secrets.token_hex(12)}"


class CallSyntax(Protocol):
    """How one call is written and read."""

    @property
    def notation(self) -> Notation | None:
        """How the grammar writes the arguments; None: as a JSON object."""

    def frame(self, name: str) -> tuple[str, str]:
        """Return the text before and after the arguments in a call of the tool `name`."""

    def read(self, text: CallText) -> Found:
        """Read a call, and report its events to `text`; return whether there is one.

        What is not part of a call is put back, from the first character that does not fit on.
        """


@dataclass(frozen=True)
class ToolCallFormat:
    """How a family of models writes tool calls: `opening`, `before`, a call, `between`, a call, ..., `after`.

    The texts are as the model was trained to write them; what is read may have other whitespace.
    """

    name: str
    signs: tuple[str, ...]  # a chat template with one of these substrings has this format
    opening: str  # marker before the first call
    before: str
    between: str | None  # None: one call at most
    after: str
    syntax: CallSyntax
    closing: str | None = None  # marker after a call
    bare: bool = False  # a call can be the whole text, without `opening`
    new_id: Callable[[], str] = long_id

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers, which may be special tokens of the tokenizer."""
        return (self.opening, self.closing) if self.closing is not None else (self.opening,)

    @property
    def first(self) -> str:
        """The first character of calls without `opening`."""
        return (self.before + self.syntax.frame("")[0]).lstrip()[0]
