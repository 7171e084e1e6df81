"""Decode tokens to text as they arrive: no partial characters, and no text that a stop string may still remove."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import TYPE_CHECKING

from intaglio.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTEXT = 8  # preceding tokens to decode with: they decide about a leading space
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what the bytes of an unfinished character decode to


class TextStream:
    """Decodes tokens one at a time, up to the first stop string.

    Text that `push` returned never changes: a character whose bytes are in several tokens is returned with the last
    of them, and text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        keep_special: Collection[int] = (),
    ):
        """`prompt`: the tokens before the text; `stop`: strings that end it, none of them empty.

        `keep_special`: special tokens that are part of the text; it does not contain the others.
        """
        if "" in stop:
            raise UsageError("a stop string is empty, expected at least one character. Leave it out.")
        self.stopped: str | None = None  # the stop string that was found
        self.characters = 0  # number of decoded characters, including those that a stop string removed
        self._tokenizer = tokenizer
        self._left_out = _special(tokenizer).difference(keep_special) if keep_special else None
        self._stop = tuple(stop)
        self._window = list(prompt[-CONTEXT:])  # tokens that influence how the next ones decode
        self._decoded = self._decode()  # the part of the window's text that was processed
        self._held = ""  # decoded, but may be the beginning of a stop string
        self._deferred: list[int] = []  # tokens to decode in `finish`

    def push(self, token: int) -> str:
        """Add the next token; return the new final text, which may be empty."""
        self._window.append(token)
        text = self._decode()
        complete = text.rstrip(UNFINISHED)
        new = complete[len(self._decoded) :]
        if new:
            self._decoded = complete
        if len(complete) == len(text) and len(self._window) > 2 * CONTEXT:
            del self._window[:-CONTEXT]
            self._decoded = self._decode()
        return self._certain(new)

    def defer(self, token: int) -> None:
        """Add the next token; it is decoded in `finish`, without a search for stop strings before."""
        self._deferred.append(token)

    def branch(self) -> TextStream:
        """Return an independent stream that continues from here."""
        other = copy(self)
        other._window = list(self._window)
        other._deferred = list(self._deferred)
        return other

    def finish(self) -> str:
        """Return the rest of the text: held-back text, and a partial character as the tokenizer decodes it."""
        self._window += self._deferred
        self._deferred.clear()
        text = self._decode()
        new, self._decoded = text[len(self._decoded) :], text
        rest = self._certain(new) + self._held
        self._held = ""
        return rest

    def _decode(self) -> str:
        if self._left_out is None:
            return self._tokenizer.decode(self._window, skip_special_tokens=True)
        tokens = [token for token in self._window if token not in self._left_out]
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def _certain(self, new: str) -> str:
        """Add `new` to the held-back text, and return the part that no stop string can change."""
        self.characters += len(new)
        if not self._stop:
            return new
        if self.stopped is not None:
            return ""
        text = self._held + new
        found = [(place + len(stop), place, stop) for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            _, place, self.stopped = min(
                found
            )  # the first to be complete, so that the result does not depend on the token boundaries
            self._held = ""
            return text[:place]
        length = max(_overlap(text, stop) for stop in self._stop)
        certain = len(text) - length
        self._held = text[certain:]
        return text[:certain]


def _special(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the special tokens, which decoding leaves out."""
    return frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if stop.startswith(text[-length:])), 0)
