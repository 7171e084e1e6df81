"""The scheduler: runs many requests at a time in the rows of one batch, each with the text that it has alone.

Requests enter and leave rows between forward passes (continuous batching); long prompts are prefilled in chunks, and
the other rows continue between them. A prefix that one row has read is copied to rows whose prompt begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields

from intaglio.bundle import Bundle
from intaglio.errors import EngineError, IntaglioError, UsageError, one_line
from intaglio.runtime.generation.events import Event, Failed, Finished, Piece
from intaglio.runtime.generation.observer import Kind, Observer, Pass
from intaglio.runtime.generation.passes import Part, part_of, run, that_fit
from intaglio.runtime.generation.prompt_reader import EncodedPrompt, Prompt, PromptLimit, PromptReader
from intaglio.runtime.generation.request import GenerationRequest
from intaglio.runtime.generation.request_state import RequestState
from intaglio.runtime.generation.rows import Row, Rows, is_reading
from intaglio.runtime.generation.scheduler_options import Load, SchedulerOptions
from intaglio.runtime.generation.waiting import WaitingRequests
from intaglio.runtime.sessions.decoder import DecoderSession, Logits
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession
from intaglio.runtime.strategies import CachedModel, Forward, ReadSource, Strategy
from intaglio.runtime.strategies.contract import NO_LOGITS


class Scheduler:
    """Runs requests on a model, with or without a draft model, as many at a time as the sessions have rows.

    state = scheduler.submit(GenerationRequest("Once upon a time"))
    while not state.ended:
        events = scheduler.step()

    One thread calls `step`; `submit`, `cancel`, `wait` and `wake` may be called from any. Each submitted request ends
    with one `Finished` or `Failed`.
    """

    def __init__(
        self,
        bundle: Bundle,
        large: DecoderSession,
        draft: DecoderSession | None = None,
        options: SchedulerOptions | None = None,
    ):
        """`large` runs `bundle`, `draft` a smaller model with the same tokens and rows. The caller closes both."""
        assert bundle.manifest.decoder is not None, "a session was opened for it"
        options = options or SchedulerOptions()
        self.prompts = PromptReader(bundle)
        self.limit = min(session.limit for session in (large, draft) if session)  # tokens of a prompt and its text
        self._ends = frozenset(bundle.manifest.decoder.eos_token_ids)
        self._large, self._draft, self._chunk = large, draft, options.chunk
        self._start = large.encoder.decoder_start_token_id if isinstance(large, EncoderDecoderSession) else None
        sources = [each.source_limit for each in (large, draft) if isinstance(each, EncoderDecoderSession)]
        self.source_limit = min(sources, default=None)  # tokens that an encoder reads; None: there is no encoder
        self._waiting = WaitingRequests(options.max_waiting, options.max_waiting_tokens)
        self._rows = Rows(large, draft)
        self._running: list[tuple[Row, RequestState]] = []  # in the order in which they started
        self._prepared: dict[tuple[object, ...], Strategy] = {}
        self._passes, self._read_last = 0, False  # and whether a prompt was read since the last decode step
        self._events: list[Event] = []
        self.observer: Observer | None = None

    def prepare(self, strategy: Strategy) -> Strategy:
        """Prepare a strategy for the models, once; return the prepared one with the same options.

        Raises `UsageError` if the models do not fit it, or if it needs to measure them while they are running.
        """
        key = _key(strategy)
        if key not in self._prepared:
            if strategy.needs_draft and self._draft is None:
                raise UsageError("the strategy needs a draft model, and none is open. Choose another strategy.")
            if strategy.measures and self._running:
                raise UsageError("strategy auto measures the models, which are running. Prepare it before submitting.")
            self._rows.prepare(strategy)
            self._prepared[key] = strategy
        return self._prepared[key]

    def submit(self, request: GenerationRequest) -> RequestState:
        """Queue a request. A request with an invalid prompt fails in the next step.

        Raises `BusyError` if the queue is full.
        """
        try:
            request.sampling.check_vocabulary(self._large.vocabulary)
            prompt = self.encode(request.prompt)
        except IntaglioError as error:
            state = RequestState(request, EncodedPrompt("", []), self.prompts.tokenizer, self._start)
            state.error = error
            self._waiting.end(state)
            return state
        state = RequestState(request, prompt, self.prompts.tokenizer, self._start)
        self._waiting.add(state)
        return state

    def encode(self, prompt: Prompt | Sequence[int] | EncodedPrompt) -> EncodedPrompt:
        """Encode a prompt. Raises `UsageError` if it is invalid, empty or too long; may be called from any thread."""
        return self.prompts.encode(prompt, PromptLimit.of(self.limit, self.source_limit))

    def cancel(self, state: RequestState) -> None:
        """End a request before the next pass and keep its text so far; its row is free for that pass."""
        self._waiting.end(state)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._running or self._waiting)

    def load(self) -> Load:
        """Return the current load; may be called from any thread."""
        rows = [row for row, _ in self._running]
        tokens = sum(self._large.lengths[row.number] for row in rows)
        return Load(len(rows), len(self._waiting), tokens, self._large.batch * self.limit)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is work for a step, at most `timeout` seconds; return whether there is."""
        return bool(self._running) or self._waiting.wait(timeout)

    def wake(self) -> None:
        """Let `wait` return, whether there is work or not: now, or when it is called next."""
        self._waiting.wake()

    def step(self) -> list[Event]:
        """Start and end requests, run at most one forward pass, and return the events.

        An error of one request ends that request only; an error of an engine ends all running requests.
        """
        self._events = []
        try:
            if self._waiting:
                self._end_and_begin()
            self._pass()
        except Exception as error:  # of an engine, whose caches are in an unknown state now
            known = error if isinstance(error, IntaglioError) else EngineError(one_line(error) or repr(error))
            known.__cause__ = error.__cause__ if known is error else error
            self._end_all(known)
        except BaseException:  # an interrupt, at any point
            self._end_all(None)
            raise
        return self._events

    def close(self) -> None:
        """End all requests, including those that wait."""
        self._end_all(None)
        while state := self._waiting.take(lambda _: True):
            state.close()

    def _end_and_begin(self) -> None:
        """End the cancelled and invalid requests, and start as many others as there are free rows."""
        for state in self._waiting.ending():
            self._end(state)
        while (first := self._waiting.take(self._may_begin)) is not None:
            self._begin(first)

    def _may_begin(self, state: RequestState) -> bool:
        """Whether there is a free row; a strategy that measures the models waits until all others have finished."""
        if self._running and state.request.strategy.measures and _key(state.request.strategy) not in self._prepared:
            return False
        return len(self._running) < self._large.batch

    def _begin(self, state: RequestState) -> None:
        try:
            strategy = self.prepare(state.request.strategy)
        except Exception as error:
            state.error = error
            self._end(state)
            return
        row = self._rows.take(state)
        self._running.append((row, state))
        drafts = self._draft is not None and strategy.needs_draft is not False
        large = CachedModel(self._large, row.number, "large")
        draft = CachedModel(self._draft, row.number, "small") if self._draft is not None and drafts else None
        state.begin(large, draft, self.limit, self._ends)
        state.write(strategy, self._chunk)
        if self.observer is not None:
            self.observer.begun(state)
        self._go_on(state, None)

    def _pass(self) -> None:
        """Run one pass: rows that draft come first, so that as many as possible share a pass of the large model.

        Then prefill and decode steps alternate. The order also protects the drafts of an early exit, which are in the
        large model's cache behind the tokens that it has read.
        """
        reading: list[tuple[Row, RequestState]] = []
        parts: list[Part] = []
        for row, state in self._running:
            forward = state.forward
            if isinstance(forward, ReadSource) or (forward is not None and is_reading(state)):
                reading.append((row, state))
            elif forward is not None:
                parts.append(part_of(state, forward, self._chunk))
        if len(parts) > 1:
            parts.sort(key=_last_served)
        drafting = [part for part in parts if part.forward.model.author == "small"] if self._draft is not None else []
        if reading and not drafting and not (self._read_last and parts):
            self._read_last = True
            self._read(reading)
        elif parts:
            self._read_last = self._read_last and bool(drafting)
            self._run(that_fit(drafting or parts), "decode")

    def _read(self, reading: Sequence[tuple[Row, RequestState]]) -> None:
        """Read a chunk of a prompt, or of several short prompts together, or let an encoder read a source."""
        row, state = reading[0]
        if isinstance(state.forward, ReadSource):
            self._read_source(row, state, state.forward.model)
            return
        parts: list[Part] = []
        for place, (row, state) in enumerate(reading):
            forward = state.forward
            if not isinstance(forward, Forward):
                continue
            session = forward.model.session
            if parts and session is not parts[0].forward.model.session:
                continue
            if self._rows.is_read_before(row, session, [earlier for earlier, _ in reading[:place]]):
                continue
            self._rows.copy_prefix(row, session)
            part = part_of(state, forward, self._chunk)
            if not part.tokens:  # all of it was copied
                self._go_on(state, NO_LOGITS)
            elif not parts or (len(parts) + 1) * max(len(each.tokens) for each in [*parts, part]) <= self._chunk:
                parts.append(part)
        if parts:
            self._run(parts, "prefill")

    def _read_source(self, row: Row, state: RequestState, model: CachedModel) -> None:
        session = model.session
        assert isinstance(session, EncoderDecoderSession), "only encoder-decoders have a source"
        before, began = session.seconds, time.perf_counter()
        try:
            session.read_row(row.number, state.source)
        except IntaglioError as error:
            state.error = error
            self._end(state)
            return
        state.counts.read(model.author, session.seconds - before)
        self._observe(model, "prefill", began, [state.source])
        self._go_on(state, NO_LOGITS)

    def _run(self, parts: Sequence[Part], kind: Kind) -> None:
        """Run a pass and continue the requests that it answers."""
        self._passes += 1
        model, began = parts[0].forward.model, time.perf_counter()
        answers = run(model.session, parts, self._passes)
        if self.observer is not None:
            self._observe(model, kind, began, [part.tokens for part in parts])
        for state, logits in answers:
            self._go_on(state, logits)

    def _observe(self, model: CachedModel, kind: Kind, began: float, rows: Sequence[Sequence[int]]) -> None:
        """Report a pass over the tokens of `rows` that ends now."""
        if self.observer is not None:
            seconds, tokens = time.perf_counter() - began, sum(map(len, rows))
            self.observer.passed(Pass(model.author, kind, began, seconds, len(rows), tokens, len(self._waiting)))

    def _go_on(self, state: RequestState, logits: Logits | None) -> None:
        """Run a request until it waits for the next pass, or ends."""
        try:
            for text, logprobs in state.advance(logits):
                self._events.append(Piece(state, text, logprobs))
        except Exception as error:  # of its strategy, or its constraint
            state.error = error
        if state.ended or state.error is not None:
            self._end(state)

    def _end(self, state: RequestState) -> None:
        """Report the end of a request, once, and free its row if it has one."""
        if state.reported:
            return
        state.close()
        for entry in self._running:
            if entry[1] is state:
                self._running.remove(entry)
                self._rows.release(entry[0])
                break
        event = Finished(state, state.result()) if state.error is None else Failed(state, state.error)
        self._events.append(event)
        state.reported = True
        if self.observer is not None:
            self.observer.ended(event)

    def _end_all(self, error: IntaglioError | None) -> None:
        """End all running requests, and clear the caches."""
        for _, state in list(self._running):
            state.error = error
            self._end(state)
        self._rows.forget()


def _last_served(part: Part) -> int:
    return part.state.served


def _key(strategy: Strategy) -> tuple[object, ...]:
    """Return a key that is equal for strategies with the same options."""
    return type(strategy), *(getattr(strategy, each.name) for each in fields(strategy) if each.init)  # type: ignore[arg-type]
