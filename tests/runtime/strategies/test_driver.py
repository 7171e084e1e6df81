"""Batched texts equal single texts, with every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from covering import few
from fixed_engine import FixedEngine

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.strategies import STRATEGIES, Emitted

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bild": {"strategy": "bild", "fallback": 0.3, "rollback": 1.0, "max_draft": 6},
    "speculative": {"strategy": "speculative"},
    "ngram": {"strategy": "ngram", "window": 5},
    "hidden transfer": {"strategy": "hidden-transfer", "min_draft_prob": 0.01, "tree": 16},
}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 3}
methods = pytest.mark.parametrize("method", METHODS)
methods_of_any_model = pytest.mark.parametrize("method", [method for method in METHODS if method != "hidden transfer"])
PairOf = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="session")
def pair_of(trained_pair: tuple[Path, Path], trained_drafting: Callable[[str], Path]) -> PairOf:
    """A function that returns the draft and the target model for one of the METHODS."""

    def pair(method: str) -> tuple[Path, Path]:
        small, large = trained_pair
        return small, trained_drafting("hidden-transfer") if method == "hidden transfer" else large

    return pair


def write(pair: tuple[Path, Path], prompts: list[str], method: str, **options: Any) -> list[Generated]:
    draft = {"draft": pair[0]} if method in ("bild", "speculative") else {}
    return list(generate(pair[1], prompts, **METHODS[method], **draft, threads=1, **options))


def comparable(result: Generated) -> tuple[Any, ...]:
    """The fields that are independent of time."""
    return (
        result.text, result.tokens, result.trace, result.stopped, result.calls, result.processed, result.accepted,
        result.rolled_back, result.prompt_tokens,
    )  # fmt: skip


@pytest.mark.covering(1)
@methods
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("count", few([4, 7], [4]))
def test_batched_texts_equal_single_texts(
    method: str, sampling: str, count: int, pair_of: PairOf, prompts: list[str]
) -> None:
    """Prompts of different lengths, three at a time: the last batch is not full."""
    options = SAMPLED if sampling == "sampled" else {}
    alone, together = (
        write(pair_of(method), prompts[:count], method, max_new_tokens=30, batch=batch, **options) for batch in (1, 3)
    )
    assert [comparable(result) for result in together] == [comparable(result) for result in alone]


@methods
def test_batched_texts_stop_independently(method: str, pair_of: PairOf, prompts: list[str]) -> None:
    stop = [" the", "\n"]
    alone, together = (
        write(pair_of(method), prompts[:8], method, max_new_tokens=25, batch=batch, stop=stop) for batch in (1, 4)
    )
    assert [comparable(result) for result in together] == [comparable(result) for result in alone]
    assert {result.stopped for result in together} == {"stop", "length"}
    assert len({len(result.tokens) for result in together}) > 3


@methods
def test_streamed_pieces_add_up_to_each_text(method: str, pair_of: PairOf, prompts: list[str]) -> None:
    small, large = pair_of(method)
    draft = {"draft": small} if method in ("bild", "speculative") else {}
    with TextGenerator(
        large, **METHODS[method], **draft, max_new_tokens=20, batch=3, threads=1, stop=["."]
    ) as generator:
        run = generator.write_batch(prompts[:3])
        pieces = list(run)
    assert all(piece for _, piece in pieces)
    for number, text in enumerate(run.texts):
        assert "".join(piece for index, piece in pieces if index == number) == text.result().text
    order = [number for number, _ in groupby(pieces, key=lambda entry: entry[0])]
    assert len(order) > 6  # none waits for another's end


@methods
@pytest.mark.parametrize("count", few([3, 6], [3]))
def test_statistics_add_up(method: str, count: int, pair_of: PairOf, prompts: list[str]) -> None:
    for result in write(pair_of(method), prompts[:count], method, max_new_tokens=30, batch=2, stop=[" is"]):
        kept = [written for written in result.trace if not written.rolled_back]
        assert [written.token for written in kept] == result.tokens
        by_large = sum(written.by == "large" for written in kept)
        assert result.accepted + by_large == len(result.tokens)
        assert result.accepted + result.rolled_back + by_large == len(result.trace)
        drafted = result.accepted + result.rolled_back
        assert result.acceptance == (result.accepted / drafted if drafted else None)
        # Every pass of the target model gives one token; the last one may end before it, in a stop string.
        assert by_large <= result.calls.large <= by_large + 1
        assert result.processed.large >= result.prompt_tokens + len(result.tokens) - 1
        assert 0 < result.seconds_in.large <= result.seconds
        if method in ("bild", "speculative"):
            assert result.calls.small >= drafted
            assert result.processed.small >= result.prompt_tokens
            assert 0 < result.seconds_in.small <= result.seconds - result.seconds_in.large
        else:
            assert (result.calls.small, result.processed.small, result.seconds_in.small) == (0, 0, 0.0)
        assert result.prompt_seconds < result.seconds


@pytest.mark.parametrize("method", few(METHODS, ["plain", "bild", "hidden transfer"]))
def test_stop_string_within_an_accepted_draft_stops_the_text(method: str, pair_of: PairOf, prompts: list[str]) -> None:
    """Every complete text is generated again with a stop string from its middle."""
    within = 0
    for prompt, whole in zip(prompts[:6], write(pair_of(method), prompts[:6], method, max_new_tokens=24), strict=True):
        stop = whole.text[len(whole.text) // 2 :][:4]
        (cut,) = write(pair_of(method), [prompt], method, max_new_tokens=24, stop=[stop])
        assert cut.stopped == "stop"
        assert cut.text == whole.text[: whole.text.index(stop)]
        count = len(cut.trace)
        assert cut.trace == whole.trace[:count]
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
        assert not cut.trace[-1].rolled_back
        if later := [written for written in whole.trace[count:] if not written.rolled_back]:
            within += cut.trace[-1].by == later[0].by == "small"
    assert within > 0 or method == "plain"


@methods
@pytest.mark.parametrize("count", [1, 2, 11])
def test_max_new_tokens_is_exact(method: str, count: int, pair_of: PairOf, prompts: list[str]) -> None:
    for result in write(pair_of(method), prompts[:3], method, max_new_tokens=count, batch=3, ignore_eos=True):
        assert (len(result.tokens), result.stopped) == (count, "length")
        assert sum(not written.rolled_back for written in result.trace) == count
        assert result.trace[-1].by == "large"


@pytest.fixture(scope="module")
def unequal_pairs(make_decoder: Any) -> dict[str, tuple[Path, Path]]:
    """Two equal decoders, except that the draft model, or the target model, has a limit of 48 tokens, not of 64."""
    long, short = (make_decoder("llama", max_position_embeddings=limit)[1] for limit in (64, 48))
    return {"small": (short, long), "large": (long, short), "neither": (long, long)}


@pytest.mark.covering(1)
@methods_of_any_model
@pytest.mark.parametrize("shorter", ["small", "large"])
@pytest.mark.parametrize("batch", [1, 3])
def test_text_stops_at_the_smaller_models_capacity(
    method: str, shorter: str, batch: int, unequal_pairs: dict[str, tuple[Path, Path]]
) -> None:
    prompts = ["x" * 20, "Hello", "y" * 47]
    drafted = method in ("bild", "speculative")
    limit = 48 if drafted or shorter == "large" else 64
    free = write(unequal_pairs["neither"], prompts, "plain", max_new_tokens=17, ignore_eos=True)
    options: dict[str, Any] = {"max_new_tokens": 100, "batch": batch, "ignore_eos": True}
    for prompt, result, other in zip(
        prompts, write(unequal_pairs[shorter], prompts, method, **options), free, strict=True
    ):
        assert result.stopped == "capacity"
        assert result.prompt_tokens + len(result.tokens) == limit
        assert result.tokens[:17] == other.tokens[: limit - len(prompt)]
        assert sum(not written.rolled_back for written in result.trace) == len(result.tokens)


@methods_of_any_model
def test_fixed_cache_serves_texts_ending_at_different_times(method: str, tiny_pair: tuple[Path, Path]) -> None:
    """Like TensorRT's: beside texts at their end, and after it, others draft as if alone."""
    strategy = STRATEGIES[METHODS[method].get("strategy", "greedy")]()
    prompts = [[1] * 30, [2] * 3, [3] * 12]
    written: list[list[Generated]] = []
    large = Bundle.open(tiny_pair[1])
    with OnnxRuntimeEngine(Bundle.open(tiny_pair[0])) as small_engine, OnnxRuntimeEngine(large) as large_engine:
        for fixed in (False, True):
            sessions = [
                DecoderSession(FixedEngine(engine, 40, 7) if fixed else engine, decoder_of(Bundle.open(path)), 3, 40)
                for path, engine in zip(tiny_pair, (small_engine, large_engine), strict=True)
            ]
            scheduler = Scheduler(large, sessions[1], sessions[0])
            states = [
                scheduler.submit(GenerationRequest(prompt, strategy=strategy, ignore_eos=True)) for prompt in prompts
            ]
            while not scheduler.idle:
                assert not any(isinstance(event, Failed) for event in scheduler.step())
            written.append([state.result() for state in states])
            assert [len(prompt) + len(each.tokens) for prompt, each in zip(prompts, written[-1], strict=True)] == [
                40
            ] * 3
    assert [result.tokens for result in written[0]] == [result.tokens for result in written[1]]


def drafts(trace: list[Emitted]) -> Iterator[int]:
    """The lengths of the drafts in a trace."""
    for by, group in groupby(trace, key=lambda written: written.by):
        if by == "small":
            yield len(list(group))


@pytest.mark.covering(1)
@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize("method", ["speculative", "ngram"])
def test_drafts_are_at_most_as_long_as_the_window(
    method: str, window: int, trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    draft = {"draft": trained_pair[0]} if method == "speculative" else {}
    results = generate(
        trained_pair[1], prompts[:4], strategy=method, window=window, **draft, max_new_tokens=30, threads=1
    )
    assert max(length for result in results for length in drafts(result.trace)) == window
