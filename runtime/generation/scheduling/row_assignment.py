"""The rows of a batch: which request runs in which row, and the prompt prefixes that their caches can share.

Keys and values depend on the adapter of a request and its scale, so rows with different ones share none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from intaglio.networks.early_exit import NEVER
from intaglio.runtime.adapters.adapters import NONE, number_of
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.strategies import Forward, Strategy
from intaglio.runtime.strategies.calm import ALWAYS_EXIT

Lengths = Callable[[DecoderSession], Sequence[int]]  # of the caches of a session, by row

MIN_SHARED = 16  # tokens; a shorter prefix is not copied but prefilled with the rest
FEW = 4  # rows that hold less than 1 / FEW of their slots waste them
PATIENCE = 4  # requests for each row, all that short, after which the slots are given back


@dataclass
class Row:
    """A row of the batch."""

    number: int
    state: RequestState | None = None  # the request that has the row
    adapter: tuple[str | None, float] = (None, 1.0)  # and its scale: what its caches were computed with
    tokens: Sequence[int] = ()  # of an idle row: the tokens in its caches, up to their lengths
    freed: int = 0  # when it became idle, as a counter

    def known(self) -> tuple[Sequence[int], int]:
        """Return tokens, and how many of the first ones may be in the caches exactly as after a prefill.

        The last token may not have been processed yet, or be in the place of a draft; if a strategy skips blocks, only
        the prompt went through all of them.
        """
        if self.state is None:
            return self.tokens, len(self.tokens)
        if self.state.sequence is None:
            return (), 0
        tokens, all_blocks = self.state.sequence.tokens, self.state.request.strategy.whole_passes
        cached = self.state.in_cache(tokens)
        return cached, len(tokens) - 1 if all_blocks else min(len(tokens) - 1, len(self.state.start))


class Rows:
    """The rows of a pair of sessions. A finished row keeps its caches until the row is needed.

    A session may truncate idle rows in a pass, so their lengths are read whenever a prefix is reused.
    """

    def __init__(self, target: DecoderSession, draft: DecoderSession | None):
        self._target, self._draft = target, draft
        self._rows = [Row(number) for number in range(target.batch)]
        self._freed = 0
        self._short_since = 0  # the counter at the last request that was long
        target.exit_thresholds[:] = ALWAYS_EXIT  # no block runs only for idle rows

    def prepare(self, strategy: Strategy) -> None:
        """Prepare a strategy for the models; if it measures them, their caches are empty before and after.

        Raises `UsageError` where the models do not fit the strategy.
        """
        if strategy.measures:
            assert not any(self.busy()), "only idle models are measured"
            self.clear()
            self._target.exit_thresholds[:] = NEVER
        strategy.prepare(self._target, self._draft)
        if strategy.measures:
            self._target.exit_thresholds[:] = ALWAYS_EXIT

    def busy(self) -> Iterator[Row]:
        """Yield the rows that have a request."""
        return (row for row in self._rows if row.state is not None)

    def assign(self, state: RequestState) -> Row:
        """Assign the idle row that holds most of the prompt to a request; there is at least one idle row.

        If none holds any, take the first that was never used, so that passes cover few rows, or the one idle longest.
        """
        idle = [row for row in self._rows if row.state is None]
        held = {row.number: self._cached_prefix(row, self._target, state, current_lengths) for row in idle}
        best = max(idle, key=lambda row: held[row.number])
        if held[best.number] < MIN_SHARED:
            best = min(idle, key=lambda row: (row.freed, row.number))
            held[best.number] = 0
        state.reused = held[best.number]
        for session in filter(None, (self._target, self._draft)):
            session.truncate(best.number, state.reused)
        self._target.exit_thresholds[best.number] = NEVER
        self._target.adapters[best.number] = number_of(state.request.adapter, self._target.engine.adapter_names)
        self._target.adapter_scales[best.number] = state.request.adapter_scale
        best.state, best.adapter = state, adapter_of(state)
        if self._freed - self._short_since >= PATIENCE * len(self._rows):
            self._give_back()
        return best

    def release(self, row: Row) -> None:
        """Free a row; its caches keep what can be reused."""
        tokens, count = row.known()
        row.tokens, row.state = list(tokens[:count]), None
        self._freed += 1
        row.freed = self._freed
        self._target.exit_thresholds[row.number] = ALWAYS_EXIT
        self._target.adapters[row.number] = NONE
        for session in filter(None, (self._target, self._draft)):
            if FEW * session.lengths[row.number] > session.capacity:
                self._short_since = self._freed
            session.truncate(row.number, count)

    def _give_back(self) -> None:
        """Shrink the caches after a long request. Of what idle rows keep, the end is lost: nothing asked for it."""
        self._short_since = self._freed
        sessions = [session for session in (self._target, self._draft) if session is not None]
        needed = max(
            max(len(row.state.start), *(session.lengths[row.number] for session in sessions))
            for row in self._rows
            if row.state is not None
        )
        shares = [session.capacity // FEW for session in sessions]
        if any(
            needed > share or not session.cache.can_shrink(share)
            for session, share in zip(sessions, shares, strict=True)
        ):
            return
        for session, share in zip(sessions, shares, strict=True):
            for row in self._rows:
                if row.state is None:
                    session.truncate(row.number, share)
        held = max(needed, *(length for session in sessions for length in session.lengths))
        for session in sessions:
            session.cache.shrink(held)

    def clear(self) -> None:
        """Clear all caches, whose contents are unknown after an error."""
        for row in self._rows:
            row.tokens = ()
        for session in filter(None, (self._target, self._draft)):
            for row in self._rows:
                session.truncate(row.number, 0)

    def find_prefix(self, row: Row, session: DecoderSession, lengths: Lengths) -> tuple[int, int] | None:
        """Find the row that holds the longest prefix of the prompt of `row`, and its tokens, if copying it is worth it.

        `lengths`: of the caches of a session, by row.
        """
        state = row.state
        assert state is not None, "only busy rows prefill"
        others = (other for other in self._rows if other is not row)
        found = ((other.number, self._cached_prefix(other, session, state, lengths)) for other in others)
        source, held = max(found, key=itemgetter(1), default=(row.number, 0))
        return (source, held) if held - lengths(session)[row.number] >= MIN_SHARED else None

    def awaits_shared_prefix(self, row: Row, session: DecoderSession, earlier: Sequence[Row], lengths: Lengths) -> bool:
        """Whether one of the `earlier` rows prefills a longer shared prefix than `row` holds, to copy later."""
        state = row.state
        if state is None or not state.request.reuse_prefix:
            return False
        alike = (other for other in earlier if other.state and other.adapter == row.adapter)
        prefilling = (other for other in alike if other.state and is_prefilling(other.state, session, lengths))
        shared = (shared_tokens(*other.known(), state.in_cache(state.start)) for other in prefilling)
        return max(shared, default=0) - lengths(session)[row.number] >= MIN_SHARED

    def _cached_prefix(self, row: Row, session: DecoderSession, state: RequestState, lengths: Lengths) -> int:
        """Return how many tokens of the prompt of `state`, excluding its last, `row` holds in `session`."""
        if not state.request.reuse_prefix or row.adapter != adapter_of(state):
            return 0
        held = lengths(session)[row.number]
        if isinstance(session, EarlyExitSession):  # passes of the whole model overwrite what the exit alone wrote
            held = min(held, lengths(self._target)[row.number])
        tokens, known = row.known()
        return shared_tokens(tokens, min(held, known), state.in_cache(state.start))


def adapter_of(state: RequestState) -> tuple[str | None, float]:
    """What a request's keys and values depend on, beside its tokens."""
    return state.request.adapter, state.request.adapter_scale


def current_lengths(session: DecoderSession) -> Sequence[int]:
    """The tokens in each row of the cache of `session`."""
    return session.lengths


def is_prefilling(
    state: RequestState, session: DecoderSession | None = None, lengths: Lengths = current_lengths
) -> bool:
    """Whether a request waits for any session, or for `session`, to prefill more than its prompt's last token."""
    forward = state.forward
    if not isinstance(forward, Forward):
        return False
    model = forward.model
    return (session is None or model.session is session) and lengths(model.session)[model.row] < len(state.start) - 1


def shared_tokens(held: Sequence[int], most: int, prompt: Sequence[int]) -> int:
    """Return how many of the first `most` tokens of `held` match the prompt, excluding the prompt's last token."""
    most = min(most, len(held), len(prompt) - 1)
    return next((place for place in range(most) if held[place] != prompt[place]), max(most, 0))
