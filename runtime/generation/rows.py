"""The rows of a batch: who writes in which, and the prompts' beginnings that their caches hold for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from intaglio.early_exit import NEVER
from intaglio.runtime.generation.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.strategies import Forward, Strategy
from intaglio.runtime.strategies.calm import AT_ONCE

MIN_SHARED = 16  # tokens of a prefix that are worth a copy: fewer are read in the pass that reads the rest


@dataclass
class Row:
    """A row of the batch."""

    number: int
    state: RequestState | None = None  # whose it is
    tokens: Sequence[int] = ()  # once it is idle, what its caches hold, as far as their lengths go
    freed: int = 0  # when it became idle, in an order of its own
    served: int = 0  # the last pass that it took part in

    def known(self) -> tuple[Sequence[int], int]:
        """Tokens, and how many of them, from the first on, caches may hold as reading a prompt would leave them.

        The last token may not be read yet, or stand where a draft was; where a strategy leaves blocks out, only the
        prompt went through all of them.
        """
        if self.state is None:
            return self.tokens, len(self.tokens)
        if self.state.text is None:
            return (), 0
        tokens, whole = self.state.text.tokens, self.state.request.strategy.whole_passes
        return tokens, len(tokens) - 1 if whole else min(len(tokens) - 1, len(self.state.start))


class Rows:
    """The rows of a pair of sessions. A finished row keeps what its caches hold until the row is needed.

    A session may shorten rows that take no part in a pass: what they hold is looked up whenever it is to be reused.
    """

    def __init__(self, large: DecoderSession, draft: DecoderSession | None):
        self._large, self._draft = large, draft
        self._rows = [Row(number) for number in range(large.batch)]
        self._freed = 0
        large.exit_thresholds[:] = AT_ONCE  # no block is computed for the sake of idle rows

    def prepare(self, strategy: Strategy) -> None:
        """Let a strategy look at the models; one that measures them finds, and leaves, their caches empty.

        Raises `UsageError` where the models are none for it.
        """
        if strategy.measures:
            assert not any(self.busy()), "only idle models are measured"
            self.forget()
            self._large.exit_thresholds[:] = NEVER
        strategy.prepare(self._large, self._draft)
        if strategy.measures:
            self._large.exit_thresholds[:] = AT_ONCE

    def busy(self) -> Iterator[Row]:
        """The rows in which a request is written."""
        return (row for row in self._rows if row.state is not None)

    def take(self, state: RequestState) -> Row:
        """Give a request an idle row, of which there is one: that which holds most of its prompt.

        Otherwise the first that never held anything, so that passes cover few rows; then the one idle for longest.
        """
        idle = [row for row in self._rows if row.state is None]
        held = {row.number: self._held(row, self._large, state) for row in idle}
        best = max(idle, key=lambda row: held[row.number])
        if held[best.number] < MIN_SHARED:
            best = min(idle, key=lambda row: (row.freed, row.number))
            held[best.number] = 0
        state.reused = held[best.number]
        for session in filter(None, (self._large, self._draft)):
            session.truncate(best.number, state.reused)
        self._large.exit_thresholds[best.number] = NEVER
        best.state = state
        return best

    def release(self, row: Row) -> None:
        """Let a row be idle; its caches keep what can be reused."""
        tokens, count = row.known()
        row.tokens, row.state = list(tokens[:count]), None
        self._freed += 1
        row.freed = self._freed
        self._large.exit_thresholds[row.number] = AT_ONCE
        for session in filter(None, (self._large, self._draft)):
            session.truncate(row.number, count)

    def forget(self) -> None:
        """Forget what the caches hold: nobody knows it."""
        for row in self._rows:
            row.tokens = ()
        for session in filter(None, (self._large, self._draft)):
            for row in self._rows:
                session.truncate(row.number, 0)

    def copy_prefix(self, row: Row, session: DecoderSession) -> None:
        """Copy the longest beginning of the prompt of `row` that another row holds, where it holds less itself."""
        state = row.state
        assert state is not None, "only busy rows read prompts"
        others = [other for other in self._rows if other is not row]
        held, best = max(((self._held(other, session, state), other) for other in others), key=_first, default=(0, row))
        more = held - session.lengths[row.number]
        if more >= MIN_SHARED:
            session.copy(best.number, row.number, held)
            state.reused += more if session is self._large else 0

    def is_read_before(self, row: Row, session: DecoderSession, earlier: Sequence[Row]) -> bool:
        """Whether one of `earlier` rows is reading more of the prompt of `row` than that has read: it can be copied."""
        state = row.state
        if state is None or not state.request.reuse_prefix:
            return False
        reading = (other for other in earlier if other.state and is_reading(other.state, session))
        shared = (shared_tokens(*other.known(), state.start) for other in reading)
        return max(shared, default=0) - session.lengths[row.number] >= MIN_SHARED

    def _held(self, row: Row, session: DecoderSession, state: RequestState) -> int:
        """How many tokens of the prompt of `state`, all but its last at most, `row` holds in `session`."""
        if not state.request.reuse_prefix:
            return 0
        held = session.lengths[row.number]
        if isinstance(session, EarlyExitSession):  # passes of the whole model write over what the exit read alone
            held = min(held, self._large.lengths[row.number])
        tokens, known = row.known()
        return shared_tokens(tokens, min(held, known), state.start)


def is_reading(state: RequestState, session: DecoderSession | None = None) -> bool:
    """Whether a request waits for a session, or for `session`, to read more of its prompt than the last token."""
    forward = state.forward
    return (
        isinstance(forward, Forward)
        and (session is None or forward.model.session is session)
        and forward.model.length < len(state.start) - 1
    )


def shared_tokens(held: Sequence[int], most: int, prompt: Sequence[int]) -> int:
    """How many of the first `most` tokens of `held` the prompt begins with, its last token left out."""
    most = min(most, len(held), len(prompt) - 1)
    return next((place for place in range(most) if held[place] != prompt[place]), max(most, 0))


def _first(entry: tuple[int, Row]) -> int:
    return entry[0]
