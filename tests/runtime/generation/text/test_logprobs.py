"""Log-probabilities: computed from the target model's own logits, with every strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scheduled_models import Models

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed, Finished, Piece
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.strategies import STRATEGIES, Emitted, Plain, Strategy
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps

PROMPT = np.random.default_rng(6).integers(0, 250, 30).tolist()
CASES: list[tuple[str, str, dict[str, Any]]] = [  # models, strategy, its options
    ("float", "greedy", {}),
    ("float", "bild", {"fallback": 0.3, "rollback": 1.0, "max_draft": 4}),
    ("float", "speculative", {"window": 3}),
    ("float", "ngram", {"ngram": 2, "min_draft_prob": 1e-3}),
    ("fixed", "speculative", {"window": 3}),
    ("medusa", "medusa", {"tree": 6, "min_draft_prob": 1e-9}),
    ("hidden-transfer", "hidden-transfer", {"tree": 6, "min_draft_prob": 1e-9}),
    ("exit", "speculative", {"window": 3}),
]
TOP = 4


def run(models: Models, *requests: GenerationRequest, chunk: int = 256) -> list[tuple[Generated, list[Piece]]]:
    """Run the requests together; return the results and the pieces of each."""
    scheduler = models.scheduler(3, chunk=chunk)
    states = [scheduler.submit(request) for request in requests]
    pieces: dict[int, list[Piece]] = {id(state): [] for state in states}
    results = {}
    while not scheduler.idle:
        for event in scheduler.step():
            assert not isinstance(event, Failed), event.error
            if isinstance(event, Piece):
                pieces[id(event.state)].append(event)
            if isinstance(event, Finished):
                results[id(event.state)] = event.result
    return [(results[id(state)], pieces[id(state)]) for state in states]


def log_softmax(models: Models, tokens: list[int]) -> np.ndarray:
    """The target model's log-probabilities [len(tokens), vocab] after the prompt, all from one pass."""
    session, _ = models.sessions(1)
    (logits,) = session.append([[*PROMPT, *tokens[:-1]]], [len(tokens)])
    logits = logits.astype(np.float64)
    return (
        logits - logits.max(-1, keepdims=True) - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))[:, None]
    )


@pytest.mark.covering(2)
@pytest.mark.parametrize(("kind", "name", "options"), CASES)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(1.3, top_k=9, presence_penalty=1.0, logit_bias={5: 4.0}),
    ],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("chunk", [256, 7])
def test_logprobs_are_log_softmax_of_raw_logits(
    kind: str, name: str, options: dict[str, Any], sampling: Sampling, chunk: int, models: dict[str, Models]
) -> None:
    request = GenerationRequest(
        PROMPT,
        sampling,
        max_new_tokens=30,
        seed=1,
        strategy=STRATEGIES[name](**options),
        ignore_eos=True,
        logprobs=TOP,
    )
    other = replace(request, prompt=PROMPT[3:], max_new_tokens=12)
    for result, pieces in run(models[kind], request, request, chunk=chunk):
        expected = log_softmax(models[kind], result.tokens)
        assert result.logprobs is not None
        assert [each.token for each in result.logprobs] == result.tokens
        assert [piece.logprobs for piece in pieces] == result.logprobs
        assert "".join(piece.text for piece in pieces) == result.text
        for each, row in zip(result.logprobs, expected, strict=True):
            assert each.logprob == pytest.approx(row[each.token], abs=1e-4)
            assert [value for _, value in each.top] == pytest.approx(sorted(row)[: -TOP - 1 : -1], abs=1e-4)
            assert [row[token] for token, _ in each.top] == pytest.approx([value for _, value in each.top], abs=1e-4)
    ((without, _),) = run(models[kind], replace(other, logprobs=None), chunk=chunk)
    ((with_them, _),) = run(models[kind], other, chunk=chunk)
    assert without.logprobs is None
    assert without.tokens == with_them.tokens


@dataclass(frozen=True)
class ExtraLogits(Strategy):
    """Requests more logits than it needs and uses the last, as the contract of strategies allows."""

    needs_draft = False

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        logits = yield sequence.target.forward(list(sequence.tokens), 5)
        yield Emitted(sequence.sampler.choose(logits[-1], sequence.tokens), "large")
        yield from Plain().write(sequence)


def test_logits_of_earlier_tokens_are_not_used_for_the_next_token(models: dict[str, Models]) -> None:
    request = GenerationRequest(
        PROMPT,
        max_new_tokens=3,
        strategy=ExtraLogits(),
        strategy_name="rereads",
        ignore_eos=True,
        logprobs=1,
        reuse_prefix=False,
    )
    ((result, _),) = run(models["float"], request)
    assert [each.logprob for each in result.logprobs or ()] == pytest.approx(
        log_softmax(models["float"], result.tokens).max(-1).tolist(), abs=1e-4
    )


@pytest.mark.parametrize("name", ["speculative", "ngram", "bild"])
def test_encoder_decoder_logprobs_equal_plain_decoding(name: str, models: dict[str, Models]) -> None:
    options = {"bild": {"rollback": 0.0}}.get(name, {})
    plain = GenerationRequest(PROMPT, max_new_tokens=20, ignore_eos=True, logprobs=2)
    (expected, _), (found, _) = run(models["t5"], plain, replace(plain, strategy=STRATEGIES[name](**options)))
    assert expected.logprobs and found.logprobs
    assert found.tokens == expected.tokens
    values = [[each.logprob for each in result.logprobs or ()] for result in (expected, found)]
    np.testing.assert_allclose(values[1], values[0], atol=1e-4)


def test_early_exit_token_has_the_logprobs_of_its_exit(models: dict[str, Models]) -> None:
    request = GenerationRequest(
        PROMPT, max_new_tokens=20, strategy=STRATEGIES["calm"](saturation=0.6, decay=1.0), ignore_eos=True, logprobs=1
    )
    ((result, _),) = run(models["calm"], request)
    assert result.logprobs is not None and result.blocks is not None and result.blocks < 4
    for each in result.logprobs:
        assert each.top == [(each.token, each.logprob)]
    assert result.logprobs[0].logprob == pytest.approx(log_softmax(models["calm"], result.tokens[:1]).max(), abs=1e-4)


def test_offsets_mark_the_start_of_each_tokens_characters(models: dict[str, Models]) -> None:
    request = GenerationRequest(PROMPT, Sampling(1.0), max_new_tokens=60, seed=4, ignore_eos=True, logprobs=0)
    ((result, pieces),) = run(models["float"], request)
    assert result.logprobs is not None
    assert all(not each.top for each in result.logprobs)
    shown = ""
    for piece in pieces:
        assert piece.logprobs is not None
        assert piece.logprobs.text_offset == len(shown)
        shown += piece.text
    assert len(shown) < len(pieces), "some characters are of several tokens"


def test_end_token_and_held_back_tokens_have_logprobs(models: dict[str, Models]) -> None:
    request = GenerationRequest(PROMPT, max_new_tokens=30, ignore_eos=True, logprobs=1)
    ((whole, _),) = run(models["float"], request)
    end = replace(request, end_tokens=frozenset(whole.tokens[6:7]))
    stop = replace(request, stop=[whole.text[3:5]])
    for (result, pieces), reason in zip(run(models["float"], end, stop), ("eos", "stop"), strict=True):
        assert result.stopped == reason
        assert result.logprobs is not None and whole.logprobs is not None
        assert [each.token for each in result.logprobs] == result.tokens == whole.tokens[: len(result.tokens)]
        assert [piece.logprobs for piece in pieces] == result.logprobs
        assert [each.text_offset for each in result.logprobs] == [
            each.text_offset for each in whole.logprobs[: len(result.tokens)]
        ]
        assert "".join(piece.text for piece in pieces) == result.text


def test_negative_number_of_alternatives_is_rejected() -> None:
    with pytest.raises(UsageError, match="logprobs -1: expected 0 or more"):
        GenerationRequest("x", logprobs=-1)
