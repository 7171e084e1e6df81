"""Texts while they are written: iterate over their pieces, or take them whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from intaglio.runtime.generation.events import Event, Failed, Piece
from intaglio.runtime.generation.generated import Generated
from intaglio.runtime.generation.request import GenerationRequest
from intaglio.runtime.generation.request_state import RequestState
from intaglio.runtime.generation.scheduler import Scheduler


class BatchRun:
    """Texts while they are written side by side: iterate once over their pieces; `texts` are they as far as written."""

    def __init__(self, scheduler: Scheduler, states: Sequence[RequestState]):
        """`states`: what `scheduler` was given to write."""
        self._scheduler = scheduler
        self._over = False
        self._pieces = self._write()
        self.texts = [TextRun(state, self) for state in states]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """What is certain of the texts, piece by piece, each with the number of its text, from 0 on."""
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
        """Let the texts stay as far as they are written: others are begun in their place."""
        self._over = True
        for run in self.texts:
            self._scheduler.cancel(run.state)

    def whole(self) -> list[Generated]:
        """Write the texts to their ends."""
        for run in self.texts:
            run.state.put_off_text()
        for _ in self:
            pass
        return [run.result() for run in self.texts]


class TextRun:
    """One text while it is written: iterate over its pieces; `result` is what there is so far.

    Pieces of other texts that come meanwhile wait for whoever iterates over those.
    """

    def __init__(self, state: RequestState, batch: BatchRun | None = None):
        """`batch`: what writes it, where it is not at its end."""
        self.state = state
        self._batch = batch
        self._waiting: deque[str] = deque()  # pieces that came while another text of the batch was read

    def __iter__(self) -> Iterator[str]:
        """Write the text, and those beside it, and yield what is certain of it, piece by piece, none of them empty."""
        while self._waiting:
            yield self._waiting.popleft()
        for number, piece in self._batch or ():
            assert self._batch is not None, "it gave a piece"
            text = self._batch.texts[number]
            if text is self:
                yield piece
            else:
                text._waiting.append(piece)

    def whole(self) -> Generated:
        """Write the text to its end."""
        self.state.put_off_text()
        for _ in self:
            pass
        return self.result()

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens before the text: the prompt, or what an encoder-decoder's text begins with."""
        return self.state.start

    def result(self) -> Generated:
        """The text so far, and how it came about; of one that is not at its end what is held back too."""
        return self.state.result()


class RequestsRun:
    """Any number of texts, written in all rows of a scheduler: iterate over them once, each whole, in order.

    A row whose text is at its end takes the next request at once. `begun` are those that were not given yet.
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
        """Submit as many requests as there are rows without one; False when all are written and given.

        A text that is whole is given first: what comes next may depend on what is made of it.
        """
        given_first = bool(self.begun) and self.begun[0].state.ended
        free = self._rows - sum(not run.state.ended for run in self.begun)
        for request in islice(self._requests, 0 if given_first else free):
            state = self._scheduler.submit(request)
            state.put_off_text()
            self.begun.append(TextRun(state))
        return bool(self.begun)

    def end(self) -> None:
        """Let the texts stay as far as they are written: others are begun in their place."""
        self._over = True
        for run in self.begun:
            self._scheduler.cancel(run.state)


def stepped(scheduler: Scheduler) -> list[Event]:
    """The events of a step. Raises the error of a request that came to nothing, which ends all others."""
    events = scheduler.step()
    for event in events:
        if isinstance(event, Failed):
            scheduler.close()
            raise event.error
    return events
