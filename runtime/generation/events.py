"""What a scheduler reports of the requests that it was given."""

from __future__ import annotations

from typing import NamedTuple

from intaglio.runtime.generation.generated import Generated
from intaglio.runtime.generation.request_state import RequestState


class Piece(NamedTuple):
    """The next characters of a text that are certain, one at least."""

    state: RequestState
    text: str


class Finished(NamedTuple):
    """A text is at its end, or was cancelled."""

    state: RequestState
    result: Generated


class Failed(NamedTuple):
    """A request that came to nothing, with the reason; what was written before stands in `state.result()`."""

    state: RequestState
    error: Exception


Event = Piece | Finished | Failed
