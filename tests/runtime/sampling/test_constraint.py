"""Constraints: every strategy emits allowed tokens only, the model's choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled_models import Models

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sampling.constraint import LogitConstraint, constrained, masking_memory
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession
from intaglio.runtime.strategies import STRATEGIES

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
STEPS = 24
CASES = [
    *(("float", name) for name in ("greedy", "sample", "bild", "speculative", "ngram", "auto")),
    *((kind, kind) for kind in ("medusa", "hidden-transfer", "calm")),
    ("exit", "speculative"),
    ("t5", "speculative"),
]


@dataclass(frozen=True)
class Automaton(LogitConstraint):
    """Words of a regular language: a state for each, and from each state the tokens that lead to others."""

    moves: dict[int, dict[int, int]] = field(
        default_factory=lambda: {
            0: dict.fromkeys(range(40, 60), 1),
            1: dict.fromkeys(range(0, 250, 3), 2),
            2: {10: 0, **dict.fromkeys(range(100, 200), 2)},
        }
    )

    def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """See `LogitConstraint`."""
        state = 0
        for token in written:
            state = self.moves[state][token]
        mask = np.zeros(250, np.bool_)
        mask[list(self.moves[state])] = True
        return mask


def write(models: Models, request: GenerationRequest) -> RequestState:
    scheduler = models.scheduler()
    state = scheduler.submit(request)
    while not scheduler.idle:
        for event in scheduler.step():
            if isinstance(event, Failed):
                raise event.error
    return state


def greedily(models: Models, constraint: Automaton) -> list[int]:
    """The most probable of the allowed tokens after every one, without a scheduler or a strategy."""
    session, _ = models.sessions(1)
    tokens, written = PROMPT, list[int]()
    if isinstance(session, EncoderDecoderSession):
        session.encode([PROMPT])
        tokens = [session.encoder.decoder_start_token_id]
    for _ in range(STEPS):
        logits = session.append([tokens], [1])[0][0]
        mask = constraint.allowed(written)
        assert mask is not None
        written.append(int(np.where(mask, logits[: len(mask)], -np.inf).argmax()))
        tokens = written[-1:]
    return written


@pytest.mark.covering(1)
@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("sampled", [False, True])
def test_every_strategy_emits_allowed_tokens_only(
    kind: str, name: str, sampled: bool, models: dict[str, Models]
) -> None:
    options = {
        "medusa": {"tree": 8, "min_draft_prob": 1e-9, "typical": 0.05},
        "bild": {"fallback": 0.0, "rollback": np.inf},
    }
    constraint = Automaton()
    for seed in range(4):
        request = GenerationRequest(
            PROMPT,
            Sampling(3.0, top_k=50, top_p=0.95) if sampled else Sampling(),
            max_new_tokens=STEPS,
            seed=seed,
            strategy=STRATEGIES[name](**options.get(name, {})),
            ignore_eos=True,
            constraint=constraint,
        )
        state = write(models[kind], request)
        assert len(state.tokens) == STEPS
        constraint.allowed(state.tokens)  # a token that is not allowed is no move: a KeyError
    if name in ("bild", "speculative") and kind != "t5":
        assert state.counts.accepted > 0  # drafted tokens are among them


@pytest.mark.parametrize(
    ("kind", "name"), [case for case in CASES if case[1] not in ("bild", "calm", "sample", "medusa")]
)
def test_greedy_text_is_the_most_probable_allowed_one(kind: str, name: str, models: dict[str, Models]) -> None:
    constraint = Automaton()
    request = GenerationRequest(
        PROMPT, max_new_tokens=STEPS, strategy=STRATEGIES[name](), ignore_eos=True, constraint=constraint
    )
    assert write(models[kind], request).tokens == greedily(models[kind], constraint)


def test_constraint_allowing_nothing_fails_its_request(models: dict[str, Models]) -> None:
    dead = Automaton({0: {7: 1}, 1: {}})
    with pytest.raises(UsageError, match=r"^the constraint allows no token after 1 tokens\. [^\n]*$"):
        write(models["float"], GenerationRequest(PROMPT, constraint=dead))


def test_constraint_controls_end_tokens(models: dict[str, Models]) -> None:
    """Among its tokens only the end is allowed after the second."""
    end = next(iter(models["float"].bundle.manifest.decoder.eos_token_ids))  # type: ignore[union-attr]

    @dataclass(frozen=True)
    class Two(LogitConstraint):
        def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
            mask = np.zeros(272, np.bool_)
            mask[[end] if len(written) == 2 else [30, 31]] = True
            return mask

    state = write(models["float"], GenerationRequest(PROMPT, constraint=Two()))
    assert (state.tokens[2:], state.result().stopped) == ([end], "eos")


@dataclass(frozen=True)
class Fixed(LogitConstraint):
    """The same mask after every text."""

    mask: npt.NDArray[np.bool_]

    def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """See `LogitConstraint`."""
        return self.mask


@given(masks=st.lists(st.booleans(), max_size=70), size=st.integers(1, 70), only=st.integers(0, 69))
def test_masks_of_any_length_fit_any_number_of_logits(masks: list[bool], size: int, only: int) -> None:
    mask = np.array(masks, np.bool_)
    logits = np.arange(1.0, size + 1, dtype=np.float32)
    within = np.zeros(size, np.bool_)
    within[: len(mask)] = mask[:size]
    memory = masking_memory(logits)
    if within.any():
        found = constrained(logits, Fixed(mask), [], memory)
        np.testing.assert_array_equal(found, np.where(within, logits, -np.inf))
    else:
        with pytest.raises(UsageError, match="allows no token after 0 tokens"):
            constrained(logits, Fixed(mask), [], memory)
    assert Fixed(mask).forced([]) == (int(mask.argmax()) if np.count_nonzero(mask) == 1 else None)
    assert Fixed(np.arange(70) == only).forced([]) == only
