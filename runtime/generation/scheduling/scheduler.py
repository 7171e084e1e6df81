"""The scheduler: runs many requests at a time in the rows of one batch, each with the same text as alone.

Requests enter and leave rows between forward passes (continuous batching); long prompts are prefilled in chunks, and
the other rows continue between them. A shared prefix is copied from the row that holds it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from intaglio.bundle.bundle import Bundle
from intaglio.errors import EngineError, IntaglioError, UsageError, one_line
from intaglio.runtime.adapters.adapters import number_of
from intaglio.runtime.generation.requests.languages import in_language, start_tokens
from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt, Prompt, PromptEncoder, PromptLimit
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.batch import Batch
from intaglio.runtime.generation.scheduling.events import Event, Failed, Finished, Piece
from intaglio.runtime.generation.scheduling.forward_passes import run_batch
from intaglio.runtime.generation.scheduling.observer import Kind, Observer, Pass
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.row_assignment import Row, Rows
from intaglio.runtime.generation.scheduling.schedule import schedule
from intaglio.runtime.generation.scheduling.scheduler_options import Load, SchedulerOptions
from intaglio.runtime.generation.scheduling.waiting import WaitingRequests
from intaglio.runtime.sampling.constraint import Suppression
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import StepLogits
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession
from intaglio.runtime.strategies import CachedModel, EncodeSource, Strategy
from intaglio.runtime.strategies.contract import NO_LOGITS
from intaglio.runtime.vision.image_reader import ImageReader

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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
        target: DecoderSession,
        draft: DecoderSession | None = None,
        options: SchedulerOptions | None = None,
        reader: ImageReader | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        """`target` runs `bundle`, `draft` a draft model with the same tokens and rows. The caller closes both.

        `reader`: of the images in prompts, if the bundle reads any. `tokenizer`: the bundle's, if it is open already.
        """
        assert bundle.manifest.decoder is not None, "a session was opened for it"
        options = options or SchedulerOptions()
        self.prompts = PromptEncoder(bundle, reader, tokenizer)
        self.limit = min(session.limit for session in (target, draft) if session)  # tokens of a prompt and its text
        self._ends = frozenset(bundle.manifest.decoder.eos_token_ids)
        self._target, self._draft, self._chunk_size = target, draft, options.chunk
        self._encoder = target.encoder if isinstance(target, EncoderDecoderSession) else None
        never = self._encoder.suppressed_tokens if self._encoder else ()
        self._suppression = Suppression(never, target.vocabulary) if never else None
        sources = [each.source_limit for each in (target, draft) if isinstance(each, EncoderDecoderSession)]
        self.source_limit = min(sources, default=None)  # maximum tokens of an encoder's input; None: no encoder
        self._waiting = WaitingRequests(options.max_waiting, options.max_waiting_tokens)
        self._rows = Rows(target, draft)
        self._running: list[tuple[Row, RequestState]] = []  # in the order in which they started
        self._prepared: dict[tuple[object, ...], Strategy] = {}
        self._passes, self._prefilled_last = 0, False  # and whether the last pass, but for drafts, was a prefill
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
            request.sampling.check_vocabulary(self._target.vocabulary)
            number_of(request.adapter, self._target.engine.adapter_names)
            prompt = in_language(self._encoder, self.encode(request.prompt), request.source_language)
            start = start_tokens(self._encoder, request.target_language)
        except IntaglioError as error:
            state = RequestState(request, EncodedPrompt("", []), self.prompts.tokenizer)
            state.error = error
            self._waiting.abort(state)
            return state
        state = RequestState(request, prompt, self.prompts.tokenizer, start, self._suppression)
        self._waiting.add(state)
        return state

    def encode(self, prompt: Prompt | Sequence[int] | EncodedPrompt) -> EncodedPrompt:
        """Encode a prompt. Raises `UsageError` if it is invalid, empty or too long; may be called from any thread."""
        encoded = self.prompts.encode(prompt, PromptLimit.of(self.limit, self.source_limit))
        if encoded.images and self._draft is not None:
            raise UsageError("the prompt has images, which a draft model does not read. Leave the draft model out.")
        return encoded

    def cancel(self, state: RequestState) -> None:
        """Abort a request before the next pass and keep its partial output; its row is free for that pass."""
        self._waiting.abort(state)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._running or self._waiting)

    def load(self) -> Load:
        """Return the current load; may be called from any thread."""
        rows = [row for row, _ in self._running]
        tokens = sum(self._target.lengths[row.number] for row in rows)
        return Load(len(rows), len(self._waiting), tokens, self._target.batch * self.limit)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is work for a step, at most `timeout` seconds; return whether there is."""
        return bool(self._running) or self._waiting.wait(timeout)

    def wake(self) -> None:
        """Let `wait` return, whether there is work or not: now, or when it is called next."""
        self._waiting.wake()

    def step(self) -> list[Event]:
        """Admit and finish requests, decide what runs, run it, update the requests; return the events.

        An error of one request ends that request only; an error of an engine ends all running requests.
        """
        self._events = []
        try:
            if self._waiting:
                self._admit()
            batch = schedule(self._running, self._rows, self._chunk_size, self._prefilled_last)
            self._update(batch, self._run(batch))
        except Exception as error:  # of an engine, whose caches are in an unknown state now
            known = error if isinstance(error, IntaglioError) else EngineError(one_line(error) or repr(error))
            known.__cause__ = error.__cause__ if known is error else error
            self._finish_all(known)
        except BaseException:  # an interrupt, at any point
            self._finish_all(None)
            raise
        return self._events

    def close(self) -> None:
        """End all requests, including those that wait."""
        self._finish_all(None)
        while state := self._waiting.take(lambda _: True):
            state.close()

    def _admit(self) -> None:
        """Finish the cancelled and invalid requests, and admit waiting ones to the free rows."""
        for state in self._waiting.take_aborted():
            self._finish(state)
        while (first := self._waiting.take(self._may_admit)) is not None:
            self._start_request(first)

    def _may_admit(self, state: RequestState) -> bool:
        """Whether there is a free row; a strategy that measures the models waits until all others have finished."""
        if self._running and state.request.strategy.measures and _key(state.request.strategy) not in self._prepared:
            return False
        return len(self._running) < self._target.batch

    def _start_request(self, state: RequestState) -> None:
        try:
            strategy = self.prepare(state.request.strategy)
        except Exception as error:
            state.error = error
            self._finish(state)
            return
        row = self._rows.assign(state)
        self._running.append((row, state))
        drafts = self._draft is not None and strategy.needs_draft is not False
        target = CachedModel(self._target, row.number, "large")
        draft = CachedModel(self._draft, row.number, "small") if self._draft is not None and drafts else None
        state.admit(target, draft, self.limit, self._ends)
        state.decode_with(strategy, self._chunk_size)
        if self.observer is not None:
            self.observer.admitted(state)
        self._resume(state, None)

    def _run(self, batch: Batch) -> list[tuple[RequestState, StepLogits]]:
        """Copy prefixes, and run the forward pass or the encoder; return the requests answered, with their logits."""
        for copy in batch.copies:
            copy.state.reused += copy.copied if copy.session is self._target else 0
            copy.session.copy(copy.source, copy.row, copy.tokens)
        answers: list[tuple[RequestState, StepLogits]] = [(state, NO_LOGITS) for state in batch.prefilled]
        if batch.source is not None:
            self._encode_source(*batch.source)
            answers.append((batch.source[0], NO_LOGITS))
        if batch.chunks:
            self._passes += 1
            model, began = batch.chunks[0].forward.model, time.perf_counter()
            answers += run_batch(model.session, batch.chunks, self._passes)
            if self.observer is not None:
                self._observe(model, batch.kind, began, [chunk.tokens for chunk in batch.chunks])
        return answers

    def _encode_source(self, state: RequestState, encode: EncodeSource) -> None:
        model, session = encode.model, encode.model.session
        assert isinstance(session, EncoderDecoderSession), "only encoder-decoders have a source"
        before, began = session.seconds, time.perf_counter()
        try:
            session.encode_rows([model.row], state.source)
        except IntaglioError as error:
            state.error = error
            return
        state.counts.encoded(model.author, session.seconds - before)
        self._observe(model, "prefill", began, [state.source])

    def _update(self, batch: Batch, answers: Sequence[tuple[RequestState, StepLogits]]) -> None:
        """Resume the requests that the batch answered, and remember whether prefills or decode steps are next."""
        if batch.kind == "prefill":
            self._prefilled_last = True
        elif batch.chunks:  # drafts do not count
            self._prefilled_last = self._prefilled_last and batch.chunks[0].forward.model.author == "small"
        for state, logits in answers:
            self._resume(state, logits)

    def _observe(self, model: CachedModel, kind: Kind, began: float, rows: Sequence[Sequence[int]]) -> None:
        """Report a pass over the tokens of `rows` that ends now."""
        if self.observer is not None:
            seconds, tokens = time.perf_counter() - began, sum(map(len, rows))
            self.observer.passed(Pass(model.author, kind, began, seconds, len(rows), tokens, len(self._waiting)))

    def _resume(self, state: RequestState, logits: StepLogits | None) -> None:
        """Resume a request, unless its pass failed, until it needs the next one, or ends."""
        try:
            for text, logprobs in state.advance(logits) if state.error is None else ():
                self._events.append(Piece(state, text, logprobs))
        except Exception as error:  # of its strategy, or its constraint
            state.error = error
        if state.ended or state.error is not None:
            self._finish(state)

    def _finish(self, state: RequestState) -> None:
        """Report the end of a request, once, and free its row if it has one."""
        if state.reported:
            return
        state.close()
        for entry in self._running:
            if entry[1] is state:
                self._running.remove(entry)
                self._rows.release(entry[0])
                break
        event = _end(state)
        self._events.append(event)
        state.reported = True
        if self.observer is not None:
            self.observer.finished(event)

    def _finish_all(self, error: IntaglioError | None) -> None:
        """End all running requests, and clear the caches."""
        for _, state in list(self._running):
            state.error = error
            self._finish(state)
        self._rows.clear()


def _end(state: RequestState) -> Finished | Failed:
    """The event that a request ends with; its last characters, which the tokenizer held back, can fail as well."""
    if state.error is None:
        try:
            return Finished(state, state.result())
        except Exception as error:
            state.error = error
    return Failed(state, state.error)


def _key(strategy: Strategy) -> tuple[object, ...]:
    """Return a key that is equal for strategies with the same options."""
    return type(strategy), *(getattr(strategy, each.name) for each in fields(strategy) if each.init)  # type: ignore[arg-type]
