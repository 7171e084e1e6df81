"""From tokens to text while they come: no half characters, and nothing that a stop string may still take back."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from intaglio.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTEXT = 8  # tokens that the next ones are decoded with: they decide about a leading space
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what the bytes of an unfinished character decode to


class TextStream:
    """The text of tokens that come one at a time, up to the first stop string.

    What `push` has returned never changes: a character whose bytes lie in several tokens is returned with the last
    of them, and text that may be the beginning of a stop string once that is decided.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()):
        """`prompt`: the tokens before the text; `stop`: strings that end it, none of them empty."""
        if "" in stop:
            raise UsageError("a stop string is empty. Give at least one character, or leave it out.")
        self.stopped: str | None = None  # the stop string that was found
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._window = list(prompt[-CONTEXT:])  # tokens that decide what the next ones decode to
        self._decoded = self._decode()  # the window's text, as far as it was taken
        self._held = ""  # decoded, but perhaps the beginning of a stop string
        self._unread: list[int] = []  # tokens that nobody waits for the text of

    def push(self, token: int) -> str:
        """Take the next token; return the text that is certain now, which may be empty."""
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

    def put_off(self, token: int) -> None:
        """Take the next token, and let its text come with `finish`. No stop string is looked for before."""
        self._unread.append(token)

    def branch(self) -> TextStream:
        """A stream of its own that goes on from here."""
        other = copy(self)
        other._window = list(self._window)
        other._unread = list(self._unread)
        return other

    def finish(self) -> str:
        """The rest of the text, when no more tokens come: what was held back, and a last half character as it is."""
        put_off = "".join(map(self.push, self._unread))
        self._unread.clear()
        whole = self._decode()
        new, self._decoded = whole[len(self._decoded) :], whole
        text = put_off + self._certain(new) + self._held
        self._held = ""
        return text

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=True)

    def _certain(self, new: str) -> str:
        """Add `new` to the text that is held, and return what no stop string can change any more."""
        if not self._stop:
            return new
        if self.stopped is not None:
            return ""
        text = self._held + new
        found = [(place + len(stop), place, stop) for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            _, place, self.stopped = min(found)  # the first to be complete, so that it is the same for any tokens
            self._held = ""
            return text[:place]
        length = max(_overlap(text, stop) for stop in self._stop)
        certain = len(text) - length
        self._held = text[certain:]
        return text[:certain]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if stop.startswith(text[-length:])), 0)
