"""Self-drafting: the text equals plain decoding, and accepted tokens form a path of the tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chi_squared import follows
from covering import examples, few
from drafts import save_drafts
from fixed_engine import FixedEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from intaglio.bundle.bundle import Axis, Bundle
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.sampling.likelihood import softmax
from intaglio.runtime.sampling.sampler import Sampling, distribution
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.strategies import STRATEGIES, Auto
from intaglio.runtime.strategies.cost_model import StepTimes
from intaglio.runtime.strategies.draft_tree import drafts_after
from intaglio.runtime.strategies.ngram_drafts import NgramDrafter
from intaglio.runtime.strategies.tree_growth import Tree, grow
from intaglio.runtime.text.tokenizer import read_backend

KINDS = ("hidden-transfer", "medusa")
PROMPTS = ["Hello there", "é", "A prompt that is longer than the others."]


@pytest.fixture(scope="session")
def make_drafting(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, Path]]:
    """A function that makes a random decoder with random drafts: (family, kind) -> plain bundle, drafting bundle."""

    def make(family: str, kind: str, **options: Any) -> tuple[Path, Path]:
        checkpoint, plain = make_decoder(family, **options)
        folder = tmp_path_factory.mktemp("drafting")
        export(str(save_drafts(checkpoint, folder / "checkpoint", kind)), folder / "bundle", check=False)
        return plain, folder / "bundle"

    return make


def texts(bundle: Path, prompts: list[str], count: int, **options: Any) -> list[Generated]:
    return list(generate(bundle, prompts, max_new_tokens=count, **options))


def tokens(results: list[Generated]) -> list[list[int]]:
    return [result.tokens for result in results]


@pytest.mark.parametrize("kind", few(KINDS, ["medusa"]))  # random drafts of both kinds follow below
@pytest.mark.parametrize("count", few([4, 20], [4]))
def test_trained_model_equals_plain_decoding(
    kind: str, count: int, trained_drafting: Callable[[str], Path], trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    prompts = prompts[:count]
    expected = texts(trained_pair[1], prompts, 40)
    for options in (
        {},
        {"tree": 3, "min_draft_prob": 0.01},
        {"tree": 16, "min_draft_prob": 0.001, "batch": 3, "draft_positions": 5},
    ):
        found = texts(trained_drafting(kind), prompts, 40, strategy=kind, **options)
        assert tokens(found) == tokens(expected)
        assert sum(result.accepted for result in found) > 0
        assert all(result.calls.large <= len(result.tokens) - result.accepted + 1 for result in found)


@pytest.mark.proof
def test_four_bit_model_equals_its_plain_decoding(
    trained_drafting: Callable[[str], Path], prompts: list[str], tmp_path: Path
) -> None:
    compress(trained_drafting("hidden-transfer"), tmp_path / "four", "rtn")
    expected = texts(tmp_path / "four", prompts[:8], 40)
    found = texts(tmp_path / "four", prompts[:8], 40, strategy="hidden-transfer", min_draft_prob=0.01)
    assert tokens(found) == tokens(expected)
    assert sum(result.accepted for result in found) > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", few(["gpt2", "llama", "mistral", "qwen3"], ["llama"]))
def test_every_family_equals_plain_decoding(
    family: str, kind: str, make_drafting: Callable[..., tuple[Path, Path]]
) -> None:
    plain, drafting = make_drafting(family, kind)
    expected = texts(plain, PROMPTS, 20)
    for batch in (1, 3):
        found = texts(drafting, PROMPTS, 20, strategy=kind, tree=12, min_draft_prob=1e-9, batch=batch)
        assert tokens(found) == tokens(expected)
        assert sum(result.rolled_back for result in found) > 0  # trees were tried, of random drafts


@pytest.mark.parametrize("seen", [[], [0], [0, 1, 3], [2, 5], [1, 2, 3, 4, 5]])
def test_kept_cache_rows_are_those_on_the_path(tiny_decoder: Path, seen: list[int]) -> None:
    text, tree = [72, 101, 108], [1, 2, 3, 4, 5, 6]
    with DecoderSession.open(tiny_decoder) as session, DecoderSession.open(tiny_decoder) as straight:
        session.append([text], [1])
        chain = {place: before for before, place in itertools.pairwise([-1, *seen])}
        parents = [chain.get(place, -1) for place in range(len(tree))]
        addresses = {name: cache.ctypes.data for name, cache in session.cache.buffers.items()}
        session.append([tree], [len(tree)], [parents])
        session.keep(0, len(text), seen)
        straight.append([text], [1])
        for place in seen:
            straight.append([[tree[place]]], [1])
        assert {name: cache.ctypes.data for name, cache in session.cache.buffers.items()} == addresses
        assert session.lengths == straight.lengths
        np.testing.assert_allclose(session.append([[9]], [1])[0], straight.append([[9]], [1])[0], atol=1e-3, rtol=1e-4)


def test_capacity_limits_the_text_not_the_tree(make_drafting: Callable[..., tuple[Path, Path]]) -> None:
    plain, drafting = make_drafting("llama", "hidden-transfer")
    (expected,) = texts(plain, ["A" * 40], 100)
    (found,) = texts(drafting, ["A" * 40], 100, strategy="hidden-transfer", tree=12, min_draft_prob=1e-9)
    assert (found.tokens, found.stopped) == (expected.tokens, "capacity")
    assert expected.stopped == "capacity"


# Both kinds' trees are verified by the same code.
@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "count"), few([("medusa", 500), ("medusa", 1500), ("hidden-transfer", 1500)], [("medusa", 500)])
)
def test_sampled_texts_follow_the_models_distribution(
    kind: str, count: int, make_drafting: Callable[..., tuple[Path, Path]]
) -> None:
    plain, drafting = make_drafting("llama", kind)
    options: dict[str, Any] = {"temperature": 40.0, "top_k": 3}
    with DecoderSession.open(plain) as session:
        prompt = read_backend(Bundle.open(plain)).encode("Hello").ids
        sampling, expected = Sampling(**options), dict[tuple[int, ...], float]()

        def add(written: tuple[int, ...], probability: float) -> None:
            if len(written) == 3:
                expected[written] = probability
                return
            session.rollback(0)
            each = distribution(session.prefill([[*prompt, *written]])[0], sampling)
            for token in np.flatnonzero(each):
                add((*written, int(token)), probability * float(each[token]))

        add((), 1.0)
    with TextGenerator(
        drafting, strategy=kind, max_new_tokens=3, tree=6, min_draft_prob=1e-9, seed=0, ignore_eos=True, **options
    ) as generator:
        sample = [tuple(generator.write("Hello").whole().tokens) for _ in range(count)]
    assert follows(sample, expected)


@pytest.mark.proof
def test_typical_acceptance_accepts_more_likely_tokens(
    trained_drafting: Callable[[str], Path], prompts: list[str]
) -> None:
    bundle, typical = trained_drafting("hidden-transfer"), 0.05
    exact = texts(bundle, prompts[:8], 40, strategy="hidden-transfer", min_draft_prob=0.01)
    found = texts(bundle, prompts[:8], 40, strategy="hidden-transfer", min_draft_prob=0.01, typical=typical)
    assert sum(result.accepted for result in found) > sum(result.accepted for result in exact)
    others = 0
    with DecoderSession.open(bundle) as session:
        for result in found:
            prompt = read_backend(Bundle.open(bundle)).encode(result.prompt).ids
            session.rollback(0)
            (logits,) = session.append([[*prompt, *result.tokens[:-1]]], [len(result.tokens)])
            kept = [written for written in result.trace if not written.rolled_back]
            for row, written in zip(logits, kept, strict=True):
                likely = softmax(row.astype(np.float64))
                if written.token != row.argmax():
                    others += 1
                    entropy = -float(likely @ np.log(np.maximum(likely, 1e-300)))
                    bound = min(typical, math.sqrt(typical) * math.exp(-entropy))
                    assert written.by == "small"
                    assert likely[written.token] >= bound * (1 - 1e-3)
    assert others > 0


@pytest.mark.parametrize("kind", KINDS)
def test_model_without_these_drafts_is_rejected(
    kind: str, tiny_decoder: Path, make_drafting: Callable[..., tuple[Path, Path]]
) -> None:
    other = next(each for each in KINDS if each != kind)
    with pytest.raises(UsageError, match=f"has no drafts. Train it .intaglio train {kind}"):
        TextGenerator(tiny_decoder, strategy=kind)
    with pytest.raises(UsageError, match=f"drafts with {other}"):
        TextGenerator(make_drafting("llama", other)[1], strategy=kind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": 0}, "tree 0"),
        ({"min_draft_prob": 0.0}, "min draft prob 0.0"),
        ({"draft_positions": 0}, "draft positions 0"),
        ({"ngram": -1}, "ngram -1"),
        ({"typical": 1.5}, "typical 1.5"),
        ({"window": 3}, "--window"),
    ],
)
def test_out_of_range_options_raise_usage_error(options: dict[str, Any], message: str, tiny_decoder: Path) -> None:
    with pytest.raises(UsageError, match=message):
        TextGenerator(tiny_decoder, strategy="medusa", **options)


@pytest.mark.parametrize(
    ("most", "expected"), [(1, [3]), (2, [3, 4]), (3, [0, 3, 4]), (9, [0, 1, 2, 3, 4])]
)  # the path ends after each with 0.2, 0.1, 0.1, 0.35, 0.25
def test_drafts_follow_the_likeliest_path_ends(most: int, expected: list[int]) -> None:
    assert Tree([5] * 5, [-1, 0, 0, 1, 2], [1.0, 0.45, 0.35, 0.35, 0.25]).likely_ends(most) == expected


@pytest.mark.parametrize(
    ("path", "row", "ahead"), [([0, 1, 3], 1, 0), ([0, 2], 0, 1), ([0], 0, 0), ([0, 2, 4, 5], 0, 3)]
)
def test_nearest_drafts_are_used_up_to_their_length(path: list[int], row: int, ahead: int) -> None:
    drafts = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(drafts_after(path, [0, 3], drafts), drafts[row, ahead:])
    assert drafts_after([5], [0, 3], drafts).shape == (0, 4)


@settings(max_examples=examples(60))
@given(
    logits=arrays.arrays(
        np.float32, st.tuples(st.integers(1, 3), st.integers(2, 5)), elements=st.floats(-4, 4, width=16)
    ),
    most=st.integers(0, 12),
    least=st.sampled_from([0.001, 0.1, 0.3]),
)
def test_tree_holds_the_likeliest_paths(logits: Any, most: int, least: float) -> None:
    found, parents, probabilities = grow(7, logits, most, least, NgramDrafter(0))
    likely = [softmax(row) for row in logits]

    def path(place: int) -> tuple[int, ...]:
        return (*path(parents[place]), found[place]) if place > 0 else ()

    paths = [path(place) for place in range(1, len(found))]
    weights = {
        each: float(np.prod([likely[step][token] for step, token in enumerate(each)]))
        for depth in range(1, len(likely) + 1)
        for each in itertools.product(range(logits.shape[1]), repeat=depth)
    }
    possible = sorted((weight for weight in weights.values() if weight >= least * (1 + 1e-5)), reverse=True)
    assert (found[0], parents[0]) == (7, -1)
    assert len(set(paths)) == len(paths) <= most
    np.testing.assert_allclose(probabilities, [1.0, *(weights[each] for each in paths)], rtol=1e-4)
    np.testing.assert_allclose(
        sorted((weights[each] for each in paths), reverse=True)[: len(possible)], possible[:most], rtol=1e-4
    )


@settings(max_examples=examples(60))
@given(
    logits=arrays.arrays(np.float32, st.tuples(st.integers(0, 2), st.just(3)), elements=st.floats(-4, 4, width=16)),
    text=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    most=st.integers(0, 8),
    least=st.sampled_from([0.01, 0.2]),
)
def test_ngram_drafts_extend_tree_paths(logits: Any, text: list[int], most: int, least: float) -> None:
    drafter = NgramDrafter(3)
    drafter.extend(text)
    found, parents, probabilities = grow(text[-1], logits, most, least, drafter)
    drafted = [softmax(row) for row in logits]

    def chance(path: tuple[int, ...]) -> float:
        """Of the last token of `path`, after those before it."""
        *before, token = path
        copy = drafter.after(before)
        copied = copy.chance if copy and copy.token == token else 0.0
        return max(copied, float(drafted[len(before)][token]) if len(before) < len(drafted) else 0.0)

    def path(place: int) -> tuple[int, ...]:
        return (*path(parents[place]), found[place]) if place > 0 else ()

    def likely(each: tuple[int, ...]) -> float:
        return float(np.prod([chance(each[: end + 1]) for end in range(len(each))]))

    paths = [path(place) for place in range(len(found))]
    assert len(set(paths)) == len(paths) <= most + 1
    np.testing.assert_allclose(probabilities, [likely(each) for each in paths], rtol=1e-4)
    # Omitted tokens are not likelier than included ones, or than `least` if the tree is not full.
    bound = min(probabilities) if len(paths) == most + 1 else least
    beside = {(*each, token) for each in paths for token in range(3)} - set(paths)
    assert all(likely(each) <= bound * (1 + 1e-4) for each in beside)


@pytest.mark.parametrize("kind", KINDS)
def test_ngram_drafts_save_passes_in_repetitive_text(
    kind: str, trained_drafting: Callable[[str], Path], trained_pair: tuple[Path, Path]
) -> None:
    prompt = ["The list of lists: one, two, three, one, two, three, one,"]
    expected = texts(trained_pair[1], prompt, 30)
    alone = texts(trained_drafting(kind), prompt, 30, strategy=kind, ngram=0)
    copying = texts(trained_drafting(kind), prompt, 30, strategy=kind)
    assert tokens(copying) == tokens(alone) == tokens(expected)
    assert copying[0].calls.large < alone[0].calls.large


@pytest.mark.parametrize("kind", few(KINDS, ["hidden-transfer"]))  # auto asks any drafting model in the same way
def test_auto_uses_the_models_own_drafts(
    kind: str, trained_drafting: Callable[[str], Path], trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    expected = texts(trained_pair[1], prompts[:2], 40)
    with TextGenerator(trained_drafting(kind), max_new_tokens=40, strategy="auto") as generator:
        assert isinstance(generator.method, Auto)
        generator.method.times = StepTimes(0.0, (1.0,) * 9)  # all drafts are verified at no cost
        found = [generator.write(prompt).whole() for prompt in prompts[:2]]
        generator.method.times = StepTimes(0.0, (1.0, 2.5, 4.0, 5.5, 7.0))
        alone = [generator.write(prompt).whole() for prompt in prompts[:2]]
    assert tokens(found) == tokens(alone) == tokens(expected)
    drafting = texts(trained_drafting(kind), prompts[:2], 40, strategy=kind)
    assert [result.trace for result in found] == [result.trace for result in drafting]
    assert all(result.calls.large >= len(result.tokens) for result in alone)  # no drafts at this cost


@pytest.mark.parametrize("kind", few(KINDS, ["medusa"]))  # both kinds' paths are penalised by the same code
def test_repetition_penalty_counts_tokens_of_the_path(
    kind: str, trained_drafting: Callable[[str], Path], trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    expected = texts(trained_pair[1], prompts[:6], 30, repetition_penalty=1.7)
    found = texts(trained_drafting(kind), prompts[:6], 30, strategy=kind, min_draft_prob=0.01, repetition_penalty=1.7)
    assert tokens(found) == tokens(expected)
    assert tokens(found) != tokens(texts(trained_pair[1], prompts[:6], 30))
    assert sum(result.accepted for result in found) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [40, 41])
def test_trees_fit_into_a_fixed_cache(
    kind: str, capacity: int, make_drafting: Callable[..., tuple[Path, Path]]
) -> None:
    """Like TensorRT's: beside a nearly full row others continue, with trees that fit."""
    plain, drafting = make_drafting("llama", kind)
    strategy = STRATEGIES[kind](tree=12, min_draft_prob=1e-9, draft_positions=2)
    prompts = [[1] * 30, [2] * 3, [3] * 12]
    with OnnxRuntimeEngine(Bundle.open(drafting)) as engine:
        session = DecoderSession(FixedEngine(engine, capacity, 7), decoder_of(Bundle.open(drafting)), 3)
        assert session.limit == capacity - (session.decoder.drafts if kind == "hidden-transfer" else 0)
        scheduler = Scheduler(Bundle.open(drafting), session)
        states = [scheduler.submit(GenerationRequest(each, strategy=strategy, ignore_eos=True)) for each in prompts]
        while not scheduler.idle:
            assert not any(isinstance(event, Failed) for event in scheduler.step())
    with DecoderSession.open(plain) as straight:
        for state, prompt in zip(states, prompts, strict=True):
            straight.rollback(0)
            count = len(state.tokens)
            (logits,) = straight.append([[*prompt, *state.tokens][:-1]], [count])
            assert logits.argmax(axis=1).tolist() == state.tokens
            assert len(prompt) + count == session.limit
    assert sum(state.counts.rolled_back for state in states) > 0


def test_too_many_draft_positions_raise_usage_error(make_drafting: Callable[..., tuple[Path, Path]]) -> None:
    bundle = Bundle.open(make_drafting("llama", "medusa")[1])
    with OnnxRuntimeEngine(bundle) as engine:
        fixed = FixedEngine(engine, 40, 7)
        fixed.axes["drafting"] = Axis(1, 2)
        with pytest.raises(UsageError, match="draft positions 3: the engine drafts after at most 2 tokens at a time"):
            STRATEGIES["medusa"](draft_positions=3).prepare(DecoderSession(fixed, decoder_of(bundle)), None)
