"""Big Little Decoder, against an implementation that recomputes the whole sequence for every decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import Emitted
from intaglio.runtime.strategies.bild import BigLittleDecoder

Write = Callable[..., list[Generated]]
LENGTH = 24  # emitted tokens
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def generator(trained_pair: tuple[Path, Path]) -> Iterator[TextGenerator]:
    """The trained pair, opened once; tests set its `method` and `ends`."""
    small, large = trained_pair
    with TextGenerator(large, strategy="bild", draft=small, max_new_tokens=LENGTH, threads=1) as opened:
        yield opened


class Reference:
    """Algorithm 5 of the thesis, greedy, without a cache."""

    def __init__(self, pair: tuple[Path, Path]):
        self.small, self.large = (DecoderSession.open(path, threads=1) for path in pair)

    def close(self) -> None:
        self.small.close()
        self.large.close()

    @staticmethod
    def probabilities(session: DecoderSession, tokens: list[int]) -> np.ndarray:
        """Of a new session with an empty cache, float64 [tokens, vocab]."""
        fresh = DecoderSession(session.engine, session.decoder)
        logits = fresh.step([tokens], logit_indices=[range(len(tokens))])[0].astype(np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def write(self, prompt: list[int], method: BigLittleDecoder, ends: frozenset[int]) -> list[Emitted]:
        """All tokens emitted after `prompt`, including rejected drafts."""
        text, written = list(prompt), []
        while True:
            verified = len(text)
            most = min(method.max_draft, len(prompt) + LENGTH - verified - 1)  # the last token is verified too
            while len(text) < verified + most and not (len(text) > verified and text[-1] in ends):
                probabilities = self.probabilities(self.small, text)[-1]
                if probabilities.max() < method.fallback:
                    break
                text.append(int(probabilities.argmax()))
            probabilities = self.probabilities(self.large, text)
            far = [i for i in range(verified, len(text)) if -math.log(probabilities[i - 1, text[i]]) > method.rollback]
            kept = min(far, default=len(text))
            written += [Emitted(token, "small", place >= kept) for place, token in enumerate(text) if place >= verified]
            del text[kept:]
            if kept > verified and text[-1] in ends:
                return written
            text.append(int(probabilities[kept - 1].argmax()))
            written.append(Emitted(text[-1], "large"))
            if text[-1] in ends or len(text) == len(prompt) + LENGTH:
                return written


@pytest.fixture(scope="module")
def reference(trained_pair: tuple[Path, Path]) -> Iterator[Reference]:
    opened = Reference(trained_pair)
    yield opened
    opened.close()


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.integers(0, 150_000),
    characters=st.integers(1, 300),
    fallback=st.one_of(st.floats(0, 1), st.just(0.0)),
    rollback=st.one_of(st.floats(0, 6), st.just(math.inf)),
    max_draft=st.integers(1, 12),
    ends=st.sampled_from(["", "\n .,", " the of\n"]),
)
def test_text_equals_algorithm_5_for_any_thresholds(
    place: int,
    characters: int,
    fallback: float,
    rollback: float,
    max_draft: int,
    ends: str,
    generator: TextGenerator,
    reference: Reference,
    held_out: str,
) -> None:
    prompt = held_out[place : place + characters]
    generator.method = BigLittleDecoder(fallback, rollback, max_draft)
    generator.ends = frozenset(generator.tokenizer.encode(END + ends).ids)
    result = generator.write(prompt).whole()
    expected = reference.write(generator.tokenizer.encode(prompt).ids, generator.method, generator.ends)
    assert result.trace == expected
    kept = [written for written in expected if not written.rolled_back]
    assert result.tokens == [written.token for written in kept]
    assert result.accepted == sum(written.by == "small" for written in kept)
    assert result.rolled_back == len(expected) - len(kept)
    assert result.stopped == ("eos" if result.tokens[-1] in generator.ends else "length")


@pytest.fixture
def write(generator: TextGenerator, prompts: list[str]) -> Write:
    """Write texts after some prompts, with thresholds; tokens of `ends` end them."""

    def run(fallback: float, rollback: float, max_draft: int, ends: frozenset[int] = frozenset()) -> list[Generated]:
        generator.method, generator.ends = BigLittleDecoder(fallback, rollback, max_draft), ends
        return [generator.write(prompt).whole() for prompt in prompts[:10]]

    return run


def authors(result: Generated) -> str:
    """One letter for each accepted token."""
    return "".join(written.by[0] for written in result.trace if not written.rolled_back)


def test_infinite_rollback_rejects_no_draft(write: Write) -> None:
    results = write(0.3, math.inf, 10)
    assert sum(result.rolled_back for result in results) == 0
    assert {result.acceptance for result in results} == {1.0}


@pytest.mark.parametrize("max_draft", [1, 5, 10])
def test_fallback_of_0_verifies_at_a_fixed_period(write: Write, max_draft: int) -> None:
    period = "s" * max_draft + "l"
    for result in write(0.0, math.inf, max_draft):
        expected = (period * LENGTH)[:LENGTH]
        assert authors(result) == expected[:-1] + "l"  # the last token is verified, so that the target model follows
        assert result.calls.large == authors(result).count("l")


def test_rollback_of_0_is_not_replaced_by_the_default(write: Write) -> None:
    """The models are never certain, so no draft token is accepted."""
    results = write(0.0, 0.0, 4)
    assert sum(result.accepted for result in results) == 0
    assert all(result.rolled_back for result in results)


def test_fallback_of_1_drafts_nothing(write: Write) -> None:
    for result in write(1.0, 2.0, 10):
        assert authors(result) == "l" * LENGTH
        assert (result.rolled_back, result.acceptance) == (0, None)
        assert result.calls.small == LENGTH - 1  # no draft for the last token, which is the target model's


def test_draft_model_processes_each_final_token_once(write: Write) -> None:
    """After the prompt each model processes every drafted or accepted token once, except the last."""
    for result in write(0.4, 2.0, 6):
        read = result.prompt_tokens + len(result.tokens) + result.rolled_back
        assert read - 2 <= result.processed.large <= read - 1
        assert result.processed.small <= read - 1


def test_end_token_of_either_model_stops_the_text(write: Write, generator: TextGenerator) -> None:
    """Frequent tokens act as end tokens; all three ways to emit one occur, and each stops the text."""
    found = set()
    for word in (".", " is", "\n"):
        ends = frozenset(generator.tokenizer.encode(word).ids)
        for result in write(0.2, 1.0, 8, ends):
            ended = result.tokens[-1] in ends
            assert not ends.intersection(result.tokens[:-1])
            assert result.stopped == ("eos" if ended else "length")
            assert result.trace[-1] == Emitted(result.tokens[-1], result.trace[-1].by)
            assert generator.tokenizer.decode(result.tokens[:-1] if ended else result.tokens) == result.text
            if ended:
                after_rollback = len(result.trace) > 1 and result.trace[-2].rolled_back
                found.add((result.trace[-1].by, after_rollback))
    assert found >= {("small", False), ("large", False), ("large", True)}


def test_drafted_end_token_is_verified(write: Write, generator: TextGenerator) -> None:
    ends = frozenset(generator.tokenizer.encode("\n.,").ids)
    results = write(0.2, 0.5, 10, ends)
    taken_back = [
        later
        for result in results
        for written, later in pairwise(result.trace)
        if written.rolled_back and written.token in ends
    ]
    assert taken_back
    assert {written.by for written in taken_back} == {"large"}  # nothing is drafted after an end


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fallback": -0.1}, "fallback -0.1: expected a probability, 0 to 1."),
        ({"fallback": 1.5}, "fallback 1.5: expected a probability"),
        ({"fallback": math.nan}, "fallback nan: expected a probability"),
        ({"rollback": -1.0}, "rollback -1.0: expected 0 or more nats, or inf."),
        ({"rollback": math.nan}, "rollback nan: expected 0 or more nats"),
        ({"max_draft": 0}, "max draft 0: expected 1 to 1024."),
    ],
)
def test_out_of_range_thresholds_raise_usage_error(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        BigLittleDecoder(**options)
