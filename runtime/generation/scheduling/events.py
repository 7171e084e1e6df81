"""The events that a scheduler reports about its requests."""

from __future__ import annotations

from typing import NamedTuple

from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.text.logprobs import TokenLogprobs


class Piece(NamedTuple):
    """The next final characters of a text, at least one; with log-probabilities, a piece for each token."""

    state: RequestState
    text: str  # may be empty if `logprobs` are given: of an end token, or while text is held back
    logprobs: TokenLogprobs | None = None  # of the token that completed `text`


class Finished(NamedTuple):
    """A request is finished, or was cancelled."""

    state: RequestState
    result: Generated


class Failed(NamedTuple):
    """A request failed, with the reason; `state.result()` has the tokens written before."""

    state: RequestState
    error: Exception


Event = Piece | Finished | Failed
