"""The worker of an encoder: runs the texts of all concurrent callers in common batches, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.manifest import Prompt
from intaglio.closing import Closing
from intaglio.errors import BusyError, EngineError, IntaglioError, UsageError, one_line
from intaglio.runtime.generation.scheduling.scheduler_options import Load
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.run_texts import TextRunner
from intaglio.runtime.text.tasks import Ran
from intaglio.runtime.text.tokenizer import Pair, TokenSequence
from intaglio.serve.bodies.token_ids import TokenIds
from intaglio.serve.responses.errors import FieldError
from intaglio.serve.workers.batch_plan import BatchLimits, next_batch
from intaglio.serve.workers.encoder_call import EncoderCall, WaitingText, end_calls
from intaglio.targets import DEFAULT

Text = str | Pair | Sequence[int]  # characters, or the tokens themselves, to which no special ones are added
CLOSED = "the server is shutting down. Try again later."


class EncoderWorker(Closing):
    """Runs an encoder bundle (tasks embed, encode, classify, fill-mask) for many callers at a time.

    worker = EncoderWorker(Bundle.open("minilm"))
    results = await worker.run(["A sentence.", "Another one."])
    worker.close()

    A batch starts when the engine is idle and the oldest text has waited for `linger_seconds`, or as soon as there are
    enough texts for a full batch; `next_batch` selects them. A text's results equal those of the text alone, up to the
    summation order of floats: the numbers of an embedding of length 1 within 1e-5 in float32.
    """

    def __init__(
        self,
        bundle: Bundle,
        target: str = DEFAULT,
        threads: int | None = None,
        max_waiting: int = 2048,
        max_waiting_tokens: int = 1 << 18,
        linger_seconds: float = 0.002,
        limits: BatchLimits | None = None,
        prompt_name: str | None = None,
    ):
        """`max_waiting`, `max_waiting_tokens`: of all callers together. `threads`: of the engine.

        `prompt_name`: the prompt put before texts whose caller names none; None: the bundle's default.

        Raises `UsageError` for options out of range, and the errors of `TextRunner`.
        """
        if min(max_waiting, max_waiting_tokens) < 1:
            raise UsageError(f"max waiting {max_waiting}, tokens {max_waiting_tokens}: expected at least 1 of both.")
        if linger_seconds < 0:
            raise UsageError(f"linger seconds {linger_seconds}: expected at least 0.")
        # Threads that busy-wait between batches would take the processor from tokenization and from other models.
        self._runner = TextRunner(bundle, target, threads, spinning=False)
        self.manifest, self._prompt_name = bundle.manifest, prompt_name
        batch = self._runner.engine.axes.get("batch")
        limits = limits or BatchLimits()
        self._limits = replace(limits, texts=min(limits.texts, (batch and batch.maximum) or limits.texts))
        self._ids = TokenIds(self._runner.tokenizer.backend)
        self._max_waiting, self._max_tokens, self._linger = max_waiting, max_waiting_tokens, linger_seconds
        self._calls: set[EncoderCall] = set()  # those that have not ended; of the event loop
        self._changed = threading.Condition()  # guards all that follows
        self._queue: list[WaitingText] = []  # oldest first
        self._tokens = 0  # in the queue
        self._count = 0  # texts in the queue, or being tokenized
        self._running = 0  # texts in the engine
        self._closed = False
        self._tokenizing = ThreadPoolExecutor(1, "intaglio-tokenizer")
        self._thread = threading.Thread(target=self._work, name="intaglio-encoder", daemon=True)
        self._thread.start()

    async def run(self, texts: Sequence[Text], prompt_name: str | None = None, field: str = "input") -> list[Ran]:
        """Run `texts` in batches with those of other callers; return one result per text, in order.

        `prompt_name`: the prompt to put before each; None: the worker's default. `field`: of the request, which has the
        texts. Raises `BusyError` if the queue is
        full, `UsageError` for an unknown prompt and for a text that the model does not accept (with its place),
        `EngineError` if the engine fails. A caller that is cancelled takes its texts out of the queue.
        """
        if not texts:
            return []
        prompt = self._prompt(texts, prompt_name, field)
        call = EncoderCall(len(texts))
        self._calls.add(call)
        try:
            return await self._run_call(call, texts, prompt, field)
        except asyncio.CancelledError:
            if call.failure is None:
                raise
            call.task.uncancel()
            raise call.failure from None
        finally:
            self._calls.discard(call)

    def _prompt(self, texts: Sequence[Text], name: str | None, field: str) -> Prompt:
        """The prompt of a call. Raises `UsageError` if it is unknown, and if texts are given as tokens."""
        if name is None:
            prompt = find_prompt(self.manifest, self._prompt_name)
        else:
            prompt = find_prompt(self.manifest, name, "prompt_name")
        if prompt.text and not all(isinstance(text, str | Pair) for text in texts):
            message = f"token ids cannot follow the prompt {prompt.text[:40]!r}. Send text, or choose an empty prompt."
            raise FieldError(f"{field}: {message}", field)
        return prompt

    async def _run_call(self, call: EncoderCall, texts: Sequence[Text], prompt: Prompt, field: str) -> list[Ran]:
        with self._changed:
            self._check_queue(len(texts))
            tokenized = self._tokenizing.submit(self._tokenize, texts, prompt, field)
            self._count += len(texts)
        try:
            sequences = await asyncio.wrap_future(tokenized)
        except BaseException:
            with self._changed:
                self._count -= len(texts)
            raise
        self._enter(call, texts, sequences)
        try:
            await call.future
        finally:
            if call.missing:
                self._drop([call])
        return [result for result in call.results if result is not None]

    def token_id(self, token: str) -> int:
        """The id of a token of a result's weights; [7] is a token without a name."""
        found = self._runner.tokenizer.backend.token_to_id(token)
        return int(token[1:-1]) if found is None else found

    @property
    def alive(self) -> bool:
        """Whether texts are run."""
        return self._thread.is_alive()

    def state(self) -> Load:
        """The current load, in texts."""
        with self._changed:
            return Load(self._running, self._count)

    def fail_all(self, error: Exception) -> int:
        """Let all callers continue with `error`; called in their event loop. Return the number of unfinished texts."""
        calls = list(self._calls)
        for call in calls:
            call.fail(error)
        return sum(call.missing for call in calls)

    def close(self) -> None:
        """Finish all texts in the queue, and release the engine. Later calls of `run` raise `EngineError`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._tokenizing.shutdown()
        self._thread.join()
        self._runner.close()

    def _check_queue(self, count: int) -> None:
        if self._closed:
            raise EngineError(CLOSED)
        if count > self._max_waiting:
            raise UsageError(f"{count} texts, expected at most {self._max_waiting}. Split them into several requests.")
        if self._count + count > self._max_waiting:
            raise BusyError(f"{self._count} texts are waiting, the maximum is {self._max_waiting}. Try again later.")

    def _tokenize(self, texts: Sequence[Text], prompt: Prompt, field: str) -> list[TokenSequence]:
        """Tokenize and check `texts`, on the tokenizer's thread."""
        encoded = iter(
            self._runner.tokenizer.encode([text for text in texts if isinstance(text, str | Pair)], prompt=prompt)
        )
        found = []
        for place, text in enumerate(texts):
            try:
                if isinstance(text, str | Pair):
                    sequence = next(encoded)
                else:
                    sequence = TokenSequence(text, [0] * len(text))
                    self._ids.check(text)
                if not sequence.ids:
                    raise UsageError("no tokens, expected at least one. Add text, or leave it out.")
                self._runner.check(text if isinstance(text, str | Pair) else "", sequence)
            except UsageError as error:
                where = f"{field}[{place}]" if len(texts) > 1 else field
                placed = type(error)(f"{where}: {error}")
                placed.param = field
                raise placed from error
            found.append(sequence)
        return found

    def _enter(self, call: EncoderCall, texts: Sequence[Text], sequences: Sequence[TokenSequence]) -> None:
        """Queue tokenized texts, which are in the count already. Raises `BusyError` if they are too many tokens."""
        tokens = sum(len(sequence.ids) for sequence in sequences)
        with self._changed:
            try:
                self._check_tokens(tokens)
            except IntaglioError:
                self._count -= len(texts)
                raise
            idle = not self._queue
            for place, (text, sequence) in enumerate(zip(texts, sequences, strict=True)):
                shown = text if isinstance(text, str | Pair) else ""
                self._queue.append(WaitingText(call, place, shown, sequence))
            self._tokens += tokens
            if idle or self._is_full():  # else the thread wakes when the oldest has waited long enough
                self._changed.notify_all()

    def _check_tokens(self, tokens: int) -> None:
        if self._closed:
            raise EngineError(CLOSED)
        if tokens > self._max_tokens:
            raise UsageError(f"{tokens} tokens, expected at most {self._max_tokens}. Split them into several requests.")
        if self._tokens + tokens > self._max_tokens:
            raise BusyError(f"{self._tokens} tokens are waiting, the maximum is {self._max_tokens}. Try again later.")

    def _drop(self, calls: Collection[EncoderCall]) -> None:
        """Take the texts of `calls` out of the queue."""
        with self._changed:
            dropped = [waiting for waiting in self._queue if waiting.call in calls]
            self._queue = [waiting for waiting in self._queue if waiting.call not in calls]
            self._leave(dropped)

    def _leave(self, texts: Sequence[WaitingText]) -> None:
        """Update the counts for texts that left the queue."""
        self._count -= len(texts)
        self._tokens -= sum(len(waiting.tokens.ids) for waiting in texts)

    def _is_full(self) -> bool:
        return self._tokens >= self._limits.tokens or len(self._queue) >= self._limits.texts

    def _work(self) -> None:
        """Run batches until `close`, on the worker's thread."""
        while batch := self._next():
            error = self._run_batch(batch)
            calls = {waiting.call for waiting in batch}
            if error is not None:
                self._drop(calls)
            with self._changed:
                self._running = 0
            end_calls([call for call in calls if error is not None or not call.missing], error)

    def _run_batch(self, batch: Sequence[WaitingText]) -> IntaglioError | None:
        """Run a batch and hand out the results, or return the error."""
        try:
            texts, sequences = [each.text for each in batch], [each.tokens for each in batch]
            results = self._runner.run_tokens(texts, sequences)
        except Exception as error:
            return error if isinstance(error, IntaglioError) else EngineError(one_line(error) or repr(error))
        for waiting, result in zip(batch, results, strict=True):
            waiting.call.results[waiting.place] = result
            waiting.call.missing -= 1
        return None

    def _next(self) -> list[WaitingText]:
        """Wait for texts and take those of the next batch; none after `close`."""
        with self._changed:
            while not self._queue or (left := self._linger_left()) > 0:
                if self._queue:
                    self._changed.wait(left)
                elif self._closed:
                    return []
                else:
                    self._changed.wait()
            places = next_batch([len(waiting.tokens.ids) for waiting in self._queue], self._limits)
            chosen = set(places)
            batch = [self._queue[place] for place in places]
            self._queue = [waiting for place, waiting in enumerate(self._queue) if place not in chosen]
            self._leave(batch)
            self._running = len(batch)
            return batch

    def _linger_left(self) -> float:
        """Seconds until the texts in the queue should start, if no others come."""
        if self._closed or self._is_full():
            return 0.0
        return self._queue[0].arrived + self._linger - time.monotonic()
