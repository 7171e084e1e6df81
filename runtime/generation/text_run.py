"""Texts while they are written: their pieces, where they end, and how they came about."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from intaglio.runtime.generation.text_stream import TextStream
from intaglio.runtime.strategies import Calls, Seconds, Text, Tokens, Written, drive

if TYPE_CHECKING:
    from intaglio.runtime.generation.generate import TextGenerator


class Generated(msgspec.Struct):
    """The text that was written after one prompt."""

    prompt: str  # as the model read it, which of a conversation is what the chat template made
    text: str  # without the prompt, special tokens, and the stop string
    tokens: list[int]  # all that were chosen, the one that ends the text among them
    trace: list[Written]  # who wrote each of them, in order; between them those that were rolled back
    tokens_per_second: float  # after those that the large model's first pass gave, which read the prompt
    strategy: str
    calls: Calls
    processed: Tokens
    seconds_in: Seconds
    accepted: int
    rolled_back: int  # of trees of drafts all tokens but those of the path that was taken
    acceptance: float | None  # the accepted part of what was drafted and reviewed; None where nothing was
    blocks: float | None  # that computed a token, mean; None for strategies that leave none out
    origins: int  # tokens that a model which drafts itself did so after, in all passes
    stopped: str  # by "eos", a "stop" string, the "length" asked for, the model's "capacity", or "interrupted"
    prompt_tokens: int
    prompt_seconds: float  # until the first tokens
    seconds: float  # in all


class BatchRun:
    """Texts while they are written side by side: iterate once over their pieces; `texts` are they as far as written."""

    def __init__(self, generator: TextGenerator, texts: Sequence[Text], prompts: Sequence[str]):
        """`texts`: not yet begun; `prompts`: what comes before them, as `Generated` tells it."""
        self._generator = generator
        self._over = False
        self._pieces = self._write()
        self.texts = [TextRun(generator, text, prompt, self) for text, prompt in zip(texts, prompts, strict=True)]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """What is certain of the texts, piece by piece, each with the number of its text, from 0 on."""
        return self._pieces

    def _write(self) -> Iterator[tuple[int, str]]:
        if self._over:
            return
        numbers = {id(run.text): number for number, run in enumerate(self.texts)}
        for run in self.texts:
            run.begin()
        self._generator.read([run.text for run in self.texts])
        for text, written in drive(self._generator.method, [run.text for run in self.texts]):
            number = numbers[id(text)]
            if piece := self.texts[number].take(written):
                yield number, piece
                if self._over:
                    return

    def end(self) -> None:
        """Let the texts stay as far as they are written: others are begun in their place."""
        self._over = True

    def whole(self) -> list[Generated]:
        """Write the texts to their ends."""
        for run in self.texts:
            run.put_off_text()
        for _ in self:
            pass
        return [run.result() for run in self.texts]


class TextRun:
    """One text while it is written: iterate over its pieces; `result` is what there is so far.

    Pieces of other texts that come meanwhile wait for whoever iterates over those.
    """

    def __init__(self, generator: TextGenerator, text: Text, prompt: str, batch: BatchRun):
        """`text`: not yet begun; `prompt`: what comes before it; `batch`: what writes it."""
        self.text = text
        self._prompt = prompt
        self._generator, self._batch = generator, batch
        self._start, self._length = len(text.tokens), text.room
        self._stream = TextStream(generator.tokenizer, text.tokens, generator.stop)
        self._trace: list[Written] = []
        self._pieces: list[str] = []
        self._waiting: deque[str] = deque()  # pieces that came while another text of the batch was read
        self._put_off = False  # whether tokens become text at the end only
        self._stopped = "interrupted"
        self._begun = self._first = self._last = 0.0  # seconds: before the prompt, after the first pass, the last
        self._first_calls, self._at_first = 0, 0  # the large model's first pass that gave tokens, and how many

    def __iter__(self) -> Iterator[str]:
        """Write the text, and those beside it, and yield what is certain of it, piece by piece, none of them empty."""
        while self._waiting:
            yield self._waiting.popleft()
        for number, piece in self._batch:
            text = self._batch.texts[number]
            if text is self:
                yield piece
            else:
                text._waiting.append(piece)

    def begin(self) -> None:
        """Look at the clock: the reading of the prompt comes next."""
        self._begun = self._first = self._last = time.perf_counter()

    def take(self, written: Written) -> str:
        """Take what the strategy wrote, end the text where it has to end, and return what is certain of it now."""
        self._trace.append(written)
        if written.rolled_back:
            return ""
        self._last = time.perf_counter()
        calls = self.text.counts.calls.large
        if not self._at_first:
            self._first_calls = calls
        if calls == self._first_calls:
            self._at_first += 1
            self._first = self._last
        piece = ""
        if written.token in self._generator.ends:
            self._stopped = "eos"
        else:
            if self._put_off:
                self._stream.put_off(written.token)
            else:
                piece = self._stream.push(written.token)
            if self._stream.stopped is not None:
                self._stopped = "stop"
            elif not self.text.room:
                self._stopped = "length" if self._length == self._generator.max_new_tokens else "capacity"
        self.text.ended = self._stopped != "interrupted"
        if self.text.ended:
            piece += self._stream.finish()
            self._last = time.perf_counter()  # the text of all tokens may have been made just now
        self._pieces.append(piece)
        return piece

    def put_off_text(self) -> None:
        """Nobody listens to the pieces: let the tokens become text at the end, unless stop strings are looked for."""
        self._put_off = not self._generator.stop

    def whole(self) -> Generated:
        """Write the text to its end."""
        self.put_off_text()
        for _ in self:
            pass
        return self.result()

    @property
    def prompt(self) -> list[int]:
        """The tokens before the text: the prompt, or what an encoder-decoder's text begins with."""
        return self.text.tokens[: self._start]

    def result(self) -> Generated:
        """The text so far, and how it came about; of one that is not at its end what is held back too."""
        rest = self._stream.branch().finish()
        total, reading = self._last - self._begun, self._first - self._begun
        tokens = self.text.tokens[self._start :]
        later = len(tokens) - self._at_first
        counted, seconds = (later, total - reading) if later else (len(tokens), total)
        counts = self.text.counts
        drafted = counts.accepted + counts.rolled_back
        return Generated(
            prompt=self._prompt,
            text="".join(self._pieces) + rest,
            tokens=tokens,
            trace=list(self._trace),
            tokens_per_second=counted / seconds if seconds else 0.0,
            strategy=self._generator.strategy,
            calls=counts.calls,
            processed=counts.processed,
            seconds_in=counts.seconds,
            accepted=counts.accepted,
            rolled_back=counts.rolled_back,
            acceptance=counts.accepted / drafted if drafted else None,
            blocks=counts.blocks / len(tokens) if counts.blocks else None,
            origins=counts.origins,
            stopped=self._stopped,
            prompt_tokens=len(self.text.source) or self._start,
            prompt_seconds=reading,
            seconds=total,
        )
