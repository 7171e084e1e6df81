"""A request on its way: waiting, being written, or at its end; and what there is of its text."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from intaglio.errors import UsageError
from intaglio.runtime.generation.generated import Generated
from intaglio.runtime.generation.prompt_reader import EncodedPrompt
from intaglio.runtime.generation.request import GenerationRequest
from intaglio.runtime.generation.sampling import Sampler
from intaglio.runtime.generation.text_stream import TextStream
from intaglio.runtime.sessions.decoder import Logits
from intaglio.runtime.strategies import CachedModel, Forward, ReadSource, Strategy, Text, Written
from intaglio.runtime.strategies.contract import NO_LOGITS, Counts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Steps = Generator[Forward | ReadSource | Written, Logits, None]


class RequestState:
    """A request that was submitted to a scheduler, which alone changes it; `result` is what there is so far."""

    def __init__(
        self, request: GenerationRequest, prompt: EncodedPrompt, tokenizer: Tokenizer, start: int | None = None
    ):
        """`start`: the token that a text of an encoder-decoder begins with."""
        self.request, self.prompt = request, prompt
        self.source: Sequence[int] = () if start is None else prompt.tokens
        self.start: Sequence[int] = prompt.tokens if start is None else (start,)  # the tokens before the text
        self.counts = Counts()
        self.reused = 0  # tokens of the prompt that the large model did not read
        self.forward: Forward | ReadSource | None = None  # what is waited for, of a request that has a row
        self.text: Text | None = None  # once it has a row
        self.error: Exception | None = None  # why it came to nothing
        self.ended = False
        self.reported = False  # whether its end is among the events
        self._steps: Steps | None = None
        self._stream = TextStream(tokenizer, self.start, request.stop)
        self._pieces: list[str] = []
        self._trace: list[Written] = []
        self._put_off = False  # whether tokens become text at the end only
        self._stopped = "interrupted"
        self._ends: frozenset[int] = frozenset()
        self._room = 0
        self._submitted = time.perf_counter()
        self._begun = self._first = self._last = 0.0  # seconds: in a row, after the first pass, after the last
        self._first_calls, self._at_first = 0, 0  # the large model's first pass that gave tokens, and how many

    def begin(self, large: CachedModel, draft: CachedModel | None, limit: int, ends: frozenset[int]) -> Text:
        """Take a row: the text is what a strategy writes from now on, of at most `limit` tokens with its prompt."""
        self._begun = self._first = self._last = time.perf_counter()
        self._ends = (frozenset() if self.request.ignore_eos else ends) | self.request.end_tokens
        self._room = min(self.request.max_new_tokens, limit - len(self.start))
        request, start = self.request, len(self.start)
        self.text = Text(
            tokens=list(self.start),
            room=self._room,
            ends=self._ends,
            sampler=Sampler(request.sampling, request.seed, request.constraint, start),
            large=large,
            source=self.source,
            draft=draft,
            counts=self.counts,
        )
        return self.text

    def write(self, strategy: Strategy, chunk: int) -> None:
        """Let `strategy` write the text; prompts of more than `chunk` tokens are read before it begins."""
        assert self.text is not None, "it has a row"
        self._steps = _steps(self.text, strategy, chunk)

    def advance(self, logits: Logits | None) -> list[str]:
        """Answer `forward` (with None at the beginning) and go on to the next one; return what is certain of the text.

        At the end of the text there is no next one.
        """
        assert self.text is not None and self._steps is not None, "it was begun"
        pieces, text = [], self.text
        self.forward = None
        given = next(self._steps) if logits is None else self._steps.send(logits)
        while isinstance(given, Written):
            if given.rolled_back:
                text.counts.rolled_back += 1
            else:
                text.tokens.append(given.token)
                text.room -= 1
                text.counts.accepted += given.by == "small"
            pieces.append(self._take(given))
            if self.ended:
                return pieces
            given = self._steps.send(NO_LOGITS)
        self.forward = given
        return pieces

    def _take(self, written: Written) -> str:
        """Look at what the strategy wrote, end the text where it has to end, and return what is certain of it now."""
        assert self.text is not None, "it was begun"
        self._trace.append(written)
        if written.rolled_back:
            return ""
        self._last = time.perf_counter()
        calls = self.counts.calls.large
        if not self._at_first:
            self._first_calls = calls
        if calls == self._first_calls:
            self._at_first += 1
            self._first = self._last
        piece = ""
        if written.token in self._ends:
            self._stopped = "eos"
        else:
            if self._put_off:
                self._stream.put_off(written.token)
            else:
                piece = self._stream.push(written.token)
            if self._stream.stopped is not None:
                self._stopped = "stop"
            elif not self.text.room:
                self._stopped = "length" if self._room == self.request.max_new_tokens else "capacity"
        self.ended = self._stopped != "interrupted"
        if self.ended:
            piece += self._stream.finish()
            self._last = time.perf_counter()  # the text of all tokens may have been made just now
        self._pieces.append(piece)
        return piece

    def put_off_text(self) -> None:
        """Nobody listens to the pieces: let the tokens become text at the end, unless stop strings are looked for."""
        self._put_off = not self.request.stop

    def close(self) -> None:
        """End the text as far as it is written."""
        self.ended = True
        self.forward = None
        if self._steps is not None:
            self._steps.close()

    @property
    def tokens(self) -> list[int]:
        """What was written so far."""
        return self.text.tokens[len(self.start) :] if self.text is not None else []

    def result(self) -> Generated:
        """The text so far, and how it came about; of one that is not at its end what is held back too."""
        rest = self._stream.branch().finish()
        total, reading = self._last - self._begun, self._first - self._begun
        counts, tokens = self.counts, self.tokens
        later = len(tokens) - self._at_first
        counted, seconds = (later, total - reading) if later else (len(tokens), total)
        drafted = counts.accepted + counts.rolled_back
        return Generated(
            prompt=self.prompt.text,
            text="".join(self._pieces) + rest,
            tokens=tokens,
            trace=list(self._trace),
            tokens_per_second=counted / seconds if seconds else 0.0,
            strategy=self.request.name,
            calls=counts.calls,
            processed=counts.processed,
            seconds_in=counts.seconds,
            accepted=counts.accepted,
            rolled_back=counts.rolled_back,
            acceptance=counts.accepted / drafted if drafted else None,
            blocks=counts.blocks / len(tokens) if counts.blocks else None,
            origins=counts.origins,
            stopped=self._stopped,
            prompt_tokens=len(self.prompt.tokens),
            reused_tokens=self.reused,
            queued_seconds=(self._begun or time.perf_counter()) - self._submitted,
            prompt_seconds=reading,
            seconds=total,
        )


def check_prompt(tokens: Sequence[int], limit: int) -> None:
    """Raise `UsageError` for a prompt that is empty, or leaves no room for a token within `limit`."""
    if not tokens:
        raise UsageError("the prompt is empty. Give at least one character.")
    if len(tokens) >= limit:
        raise UsageError(
            f"prompt of {len(tokens)} tokens: the model takes at most {limit} together with at least "
            "one new one. Shorten the prompt."
        )


def _steps(text: Text, strategy: Strategy, chunk: int) -> Steps:
    """What the strategy does, after what every one of them needs.

    A draft model that shares the large one's cache would write over what other rows drafted, if it read a long prompt
    in several passes; so the large one reads it.
    """
    if text.source:
        for model in filter(None, (text.large, text.draft)):
            yield ReadSource(model)
    if len(text.tokens) > chunk:
        yield text.large.follow(text.tokens[:-1], 0)
    yield from strategy.write(text)
