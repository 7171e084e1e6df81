"""Texts in progress: iterate over their pieces, or take them whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Event, Failed, Piece
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.scheduler import Scheduler


class BatchRun:
    """A batch of texts in progress: iterate once over their pieces; `texts` are the texts so far."""

    def __init__(self, scheduler: Scheduler, states: Sequence[RequestState]):
        """`states`: the requests submitted to `scheduler`."""
        self._scheduler = scheduler
        self._over = False
        self._pieces = self._write()
        self.texts = [TextRun(state, self) for state in states]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield the final pieces of the texts, each with the index of its text."""
        return self._pieces

    def _write(self) -> Iterator[tuple[int, str]]:
        numbers = {id(run.state): number for number, run in enumerate(self.texts)}
        while not self._over and not all(run.state.ended for run in self.texts):
            for event in stepped(self._scheduler):
                number = numbers.get(id(event.state))
                if isinstance(event, Piece) and number is not None:
                    yield number, event.text
                    if self._over:
                        return

    def end(self) -> None:
        """Stop all texts; keep the partial output."""
        self._over = True
        for run in self.texts:
            self._scheduler.cancel(run.state)

    def whole(self) -> list[Generated]:
        """Run until all texts are finished, and return them."""
        for run in self.texts:
            run.state.defer_detokenization()
        for _ in self:
            pass
        return [run.result() for run in self.texts]


class TextRun:
    """A text in progress: iterate over its pieces; `result` returns the text so far.

    Pieces of other texts of the batch that arrive meanwhile are kept for their own iterators.
    """

    def __init__(self, state: RequestState, batch: BatchRun | None = None):
        """`batch`: the batch that generates it; None for a finished text."""
        self.state = state
        self._batch = batch
        self._waiting: deque[str] = deque()  # pieces that arrived while another text of the batch was read

    def __iter__(self) -> Iterator[str]:
        """Run the batch and yield the final pieces of this text, none of them empty."""
        while self._waiting:
            yield self._waiting.popleft()
        for number, piece in self._batch or ():
            assert self._batch is not None, "it returned a piece"
            text = self._batch.texts[number]
            if text is self:
                yield piece
            else:
                text._waiting.append(piece)

    def whole(self) -> Generated:
        """Run until the text is finished, and return it."""
        self.state.defer_detokenization()
        for _ in self:
            pass
        return self.result()

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens before the text: the prompt, or the decoder start token of an encoder-decoder."""
        return self.state.start

    def result(self) -> Generated:
        """Return the text so far with its statistics; for an unfinished text, including held-back characters."""
        return self.state.result()


class RequestsRun:
    """Any number of texts, generated in all rows of a scheduler: iterate over them once, each finished, in order.

    A row whose text is finished takes the next request at once. `begun` are the started texts not yet returned.
    """

    def __init__(self, scheduler: Scheduler, requests: Iterable[GenerationRequest], rows: int):
        self._scheduler, self._rows = scheduler, rows
        self._requests = iter(requests)
        self._over = False
        self.begun: deque[TextRun] = deque()

    def __iter__(self) -> Iterator[TextRun]:
        while self._fill():
            if not self.begun[0].state.ended:
                stepped(self._scheduler)
                continue
            yield self.begun.popleft()
            if self._over:
                return

    def _fill(self) -> bool:
        """Submit as many requests as there are free rows; return False when all texts were returned.

        A finished text is returned first, since the caller may compute the next request from it.
        """
        return_first = bool(self.begun) and self.begun[0].state.ended
        free = self._rows - sum(not run.state.ended for run in self.begun)
        for request in islice(self._requests, 0 if return_first else free):
            state = self._scheduler.submit(request)
            state.defer_detokenization()
            self.begun.append(TextRun(state))
        return bool(self.begun)

    def end(self) -> None:
        """Stop all texts; keep the partial output."""
        self._over = True
        for run in self.begun:
            self._scheduler.cancel(run.state)


def stepped(scheduler: Scheduler) -> list[Event]:
    """Run a step and return its events. Raises the error of a failed request, after ending all others."""
    events = scheduler.step()
    for event in events:
        if isinstance(event, Failed):
            scheduler.close()
            raise event.error
    return events
