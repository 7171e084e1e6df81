"""The state of a request: waiting, running or finished, with its text so far."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.text.logprobs import LogprobRecorder, TokenLogprobs
from intaglio.runtime.generation.text.stream import TextStream
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.sampler import Sampler
from intaglio.runtime.sessions.device_logits import StepLogits
from intaglio.runtime.strategies import CachedModel, Emitted, EncodeSource, Forward, GeneratedSequence, Strategy
from intaglio.runtime.strategies.contract import NO_LOGITS, Counts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Steps = Generator[Forward | EncodeSource | Emitted, StepLogits, None]


class RequestState:
    """A request submitted to a scheduler, which alone changes it; `result` returns the text so far."""

    def __init__(
        self,
        request: GenerationRequest,
        prompt: EncodedPrompt,
        tokenizer: Tokenizer,
        start: Sequence[int] = (),
        constraint: LogitConstraint | None = None,
    ):
        """`start`: the tokens before the text of an encoder-decoder; none for a decoder.

        `constraint`: of a request that has none of its own.
        """
        self._constraint = request.constraint or constraint
        self.request, self.prompt = request, prompt
        self.source: Sequence[int] = prompt.tokens if start else ()
        self.start: Sequence[int] = start or prompt.tokens  # the tokens before the text
        self.counts = Counts()
        self.reused = 0  # tokens of the prompt that the target model did not prefill
        self.forward: Forward | EncodeSource | None = None  # what the request waits for, once it has a row
        self.sequence: GeneratedSequence | None = None  # once it has a row
        self.served = 0  # number of the last pass that it took part in
        self.error: Exception | None = None  # why it failed
        self.ended = False
        self.reported = False  # whether its end was reported as an event
        self._steps: Steps | None = None
        self._stream = TextStream(tokenizer, self.start, request.stop, request.keep_special)
        self._pieces: list[str] = []
        self._recorder = None if request.logprobs is None else LogprobRecorder(request.logprobs)
        self._logprobs: list[TokenLogprobs] = []
        self._trace: list[Emitted] = []
        self._deferred = False  # whether tokens are decoded only at the end
        self._stopped = "interrupted"
        self._ends: frozenset[int] = frozenset()
        self._max_new_tokens = 0
        self._submitted = time.perf_counter()
        self._begun = self._first = self._last = 0.0  # seconds: in a row, after the first pass, after the last
        self._first_calls, self._at_first = 0, 0  # the target model's first pass with output tokens, and their number

    def admit(
        self, target: CachedModel, draft: CachedModel | None, limit: int, ends: frozenset[int]
    ) -> GeneratedSequence:
        """Start in a row; return the sequence to generate, of at most `limit` tokens with the prompt."""
        self._begun = self._first = self._last = time.perf_counter()
        self._ends = (frozenset() if self.request.ignore_eos else ends) | self.request.end_tokens
        self._max_new_tokens = min(self.request.max_new_tokens, limit - len(self.start))
        request, start = self.request, len(self.start)
        self.sequence = GeneratedSequence(
            tokens=list(self.start),
            remaining=self._max_new_tokens,
            ends=self._ends,
            sampler=Sampler(request.sampling, request.seed, self._constraint, start),
            target=target,
            source=self.source,
            draft=draft,
            counts=self.counts,
            needs_logits=self._recorder is not None,
        )
        return self.sequence

    def decode_with(self, strategy: Strategy, chunk: int) -> None:
        """Generate with `strategy`; prompts of more than `chunk` tokens are prefilled before it starts."""
        assert self.sequence is not None, "it has a row"
        self._steps = _steps(self.sequence, strategy, chunk)

    def advance(self, logits: StepLogits | None) -> list[tuple[str, TokenLogprobs | None]]:
        """Answer `forward` (None at the start), and continue to the next one; at the end of the text there is none.

        Return the new final pieces of text. If the request asks for log-probabilities, there is a piece for each token,
        with those of the token; otherwise no piece is empty.
        """
        assert self.sequence is not None and self._steps is not None, "it was started"
        pieces: list[tuple[str, TokenLogprobs | None]] = []
        sequence = self.sequence
        if self._recorder is not None and isinstance(self.forward, Forward) and logits is not None:
            self._recorder.answered(self.forward, logits, sequence.tokens)
        self.forward = None
        yielded = next(self._steps) if logits is None else self._steps.send(logits)
        while isinstance(yielded, Emitted):
            if yielded.rolled_back:
                sequence.counts.rolled_back += 1
            else:
                sequence.tokens.append(yielded.token)
                sequence.remaining -= 1
                sequence.counts.accepted += yielded.by == "small"
            text, logprobs = self._emit(yielded)
            if text or logprobs:
                pieces.append((text, logprobs))
            if self.ended:
                return pieces
            yielded = self._steps.send(NO_LOGITS)
        self.forward = yielded
        return pieces

    def _emit(self, emitted: Emitted) -> tuple[str, TokenLogprobs | None]:
        """Process a token of the strategy, end the text if it is complete, and return its new final characters."""
        assert self.sequence is not None, "it was started"
        self._trace.append(emitted)
        if emitted.rolled_back:
            return "", None
        logprobs = None
        if self._recorder is not None:
            logprobs = self._recorder.record(emitted.token, self._stream.characters)
            self._logprobs.append(logprobs)
        self._last = time.perf_counter()
        calls = self.counts.calls.large
        if not self._at_first:
            self._first_calls = calls
        if calls == self._first_calls:
            self._at_first += 1
            self._first = self._last
        piece = ""
        if emitted.token in self._ends:
            self._stopped = "eos"
        else:
            if self._deferred:
                self._stream.defer(emitted.token)
            else:
                piece = self._stream.push(emitted.token)
            if self._stream.stopped is not None:
                self._stopped = "stop"
            elif self.sequence.sampler.finished(self.sequence.tokens):
                self._stopped = "eos"
            elif not self.sequence.remaining:
                self._stopped = "length" if self._max_new_tokens == self.request.max_new_tokens else "capacity"
        self.ended = self._stopped != "interrupted"
        if self.ended:
            piece += self._stream.finish()
            self._last = time.perf_counter()  # all tokens may have been decoded just now
        self._pieces.append(piece)
        return piece, logprobs

    def defer_detokenization(self) -> None:
        """Decode the tokens only at the end: no pieces are streamed.

        Has no effect with stop strings, and with log-probabilities, which have text offsets.
        """
        self._deferred = not self.request.stop and self._recorder is None

    def close(self) -> None:
        """Stop; keep the partial output."""
        self.ended = True
        self.forward = None
        if self._steps is not None:
            self._steps.close()

    def in_cache(self, tokens: Sequence[int]) -> Sequence[int]:
        """What identifies the keys and values of `tokens`, which begin with the prompt: those of images by their ids.

        A session takes these ids, too.
        """
        ids = self.prompt.image_ids
        return [*ids[: len(tokens)], *tokens[len(ids) :]] if ids else tokens

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.sequence.tokens) - len(self.start) if self.sequence is not None else 0

    @property
    def tokens(self) -> list[int]:
        """The tokens generated so far."""
        return self.sequence.tokens[len(self.start) :] if self.sequence is not None else []

    def result(self) -> Generated:
        """Return the text so far with its statistics; for an unfinished text, including held-back characters."""
        try:
            rest = self._stream.branch().finish()
        except Exception:
            if self.error is None:
                raise
            rest = ""  # what observers report of a failed request has no more errors
        total, prefill = self._last - self._begun, self._first - self._begun
        counts, tokens = self.counts, self.tokens
        later = len(tokens) - self._at_first
        counted, seconds = (later, total - prefill) if later else (len(tokens), total)
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
            prompt_seconds=prefill,
            seconds=total,
            logprobs=None if self._recorder is None else list(self._logprobs),
            stop_string=self._stream.stopped,
        )


def _steps(sequence: GeneratedSequence, strategy: Strategy, chunk: int) -> Steps:
    """Prefill, then run the strategy.

    The target model prefills a long prompt: a draft model that shares its cache would overwrite the drafts of other
    rows if it prefilled in several passes.
    """
    if sequence.source:
        for model in filter(None, (sequence.target, sequence.draft)):
            yield EncodeSource(model)
    if len(sequence.tokens) > chunk:
        yield sequence.target.forward(sequence.tokens[:-1], 0)
    yield from strategy.write(sequence)
