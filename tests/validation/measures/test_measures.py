"""The metrics of tasks, against formulas of other libraries and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.testing import assert_allclose
from rapidfuzz.distance import Levenshtein

from intaglio.accuracy.default_bounds import (
    MORE_IS_BETTER,
    OF_VALUES,
    QUALITY,
    Limit,
    approximate_bounds,
    quality_limits,
)
from intaglio.bundle.bundle import FORMAT, Manifest, Source, TensorSpec
from intaglio.bundle.effect import Effect
from intaglio.validation.comparison.changes import Changes
from intaglio.validation.comparison.verdict_rules import rules_for
from intaglio.validation.measures.answer_measure import Answers
from intaglio.validation.measures.measures import (
    LABELS,
    Distributions,
    Embeddings,
    Labels,
    Measure,
    Scores,
    Vectorwise,
    judge,
    rank_correlation,
)
from intaglio.validation.measures.ranking_measure import Rankings
from intaglio.validation.measures.task_measure import measure_for
from intaglio.validation.measures.transcript_measure import Transcripts, edits

RANDOM = np.random.default_rng(0)


def results(measure: Measure, actual: dict[str, Any], expected: dict[str, Any], **feeds: Any) -> dict[str, float]:
    measure.add(measure.part(feeds or {"x": next(iter(actual.values()))}, actual, expected))
    return measure.results


@given(arrays.arrays(np.float64, (2, 12), elements=st.integers(-4, 4).map(float)))
def test_order_of_similarities_is_spearman_correlation(pair: np.ndarray) -> None:
    if len(np.unique(pair[0])) > 1 and len(np.unique(pair[1])) > 1:
        ranks = [[np.sum(row < each) + (np.sum(row == each) + 1) / 2 for each in row] for row in pair]
        assert rank_correlation(*pair) == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("left", "right", "value"), [([1], [2], 1), ([3, 3], [5, 5], 1), ([3, 3], [5, 6], 0), ([1, np.nan], [1, 2], np.nan)]
)
def test_lists_without_an_order_have_no_correlation(left: list[float], right: list[float], value: float) -> None:
    assert_allclose(rank_correlation(np.array(left, float), np.array(right, float)), value)


def test_diverging_embeddings_lower_the_smallest_cosine() -> None:
    vectors = RANDOM.normal(size=(8, 16))
    turned = vectors.copy()
    turned[3] = -vectors[3]
    found = results(Embeddings("sentence_embedding"), {"sentence_embedding": turned}, {"sentence_embedding": vectors})
    assert found["min_cosine"] == pytest.approx(-1)
    assert found["mean_cosine"] == pytest.approx(6 / 8)
    assert found["rank_correlation"] < 0.99


def test_text_embeddings_exclude_padding_tokens() -> None:
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    tokens = RANDOM.normal(size=(5, 4))  # padding is removed already
    measure = Embeddings("last_hidden_state")
    vectors = measure._vectors({"attention_mask": mask}, tokens)
    assert_allclose(vectors, [tokens[:2].mean(0), tokens[2:].mean(0)])


@pytest.mark.parametrize(("activation", "share"), [("softmax", 2 / 3), ("sigmoid", 1 / 3)])
def test_labels_are_compared_by_the_decision_of_the_classifier(activation: str, share: float) -> None:
    expected = np.array([[2.0, -1.0], [1.0, 2.0], [3.0, 1.0]])
    actual = np.array([[1.0, 0.5], [2.0, 1.0], [3.0, -2.0]])
    assert results(Labels(activation), {"logits": actual}, {"logits": expected}) == {
        "label_agreement": pytest.approx(share)
    }


def test_score_errors_are_relative_to_their_spread() -> None:
    expected = np.array([[0.0], [2.0], [4.0]])
    found = results(Scores(), {"logits": expected + 0.5}, {"logits": expected})
    assert found["score_error"] == pytest.approx(0.5 / expected.std())


def test_rankings_are_compared_for_each_query() -> None:
    """Two queries: the order of the first one's documents is kept, that of the second one's is reversed."""
    measure = Rankings()
    for actual, expected in (([1.0, 2.0, 3.0], [1.0, 5.0, 9.0]), ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]), ([7.0], [0.0])):
        measure.add(measure.part({}, {"logits": np.array(actual)[:, None]}, {"logits": np.array(expected)[:, None]}))
    assert measure.results["rank_correlation"] == pytest.approx(0)
    measure.add(measure.part({}, {"logits": np.array([[np.nan], [1.0]])}, {"logits": np.array([[1.0], [2.0]])}))
    assert np.isnan(measure.results["rank_correlation"])


def test_answers_agree_in_both_ends() -> None:
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    start, end = np.array([1.0, 2.0, 0.0, 5.0, 1.0]), np.array([0.0, 3.0, 0.0, 1.0, 2.0])  # without padding
    other = end.copy()
    other[3] = 4.0
    found = results(
        Answers(), {"start_logits": start, "end_logits": other}, {"start_logits": start, "end_logits": end},
        attention_mask=mask,
    )  # fmt: skip
    assert found == {"label_agreement": 0.5}


def test_distributions_of_the_next_token_are_compared() -> None:
    actual, expected = RANDOM.normal(size=(2, 2, 5, 7))
    ids = RANDOM.integers(0, 7, (2, 5))
    found = results(Distributions(True), {"logits": actual}, {"logits": expected}, input_ids=ids)
    ours, theirs = (np.log(np.exp(each) / np.exp(each).sum(-1, keepdims=True))[:, :-1] for each in (actual, expected))
    assert found["kl_divergence"] == pytest.approx((np.exp(theirs) * (theirs - ours)).sum(-1).mean())
    assert found["same_top"] == pytest.approx((ours.argmax(-1) == theirs.argmax(-1)).mean())
    losses = [-np.take_along_axis(each, ids[:, 1:, None], -1).mean() for each in (ours, theirs)]
    assert found["perplexity_rise"] == pytest.approx(100 * (np.exp(losses[0] - losses[1]) - 1))


@pytest.mark.parametrize(
    "measure",
    [Embeddings("y"), Labels("softmax"), Distributions(False), Scores()],
    ids=lambda each: type(each).__name__,
)
def test_incomparable_outputs_fail_every_bound(measure: Measure) -> None:
    found = results(measure, {"other": np.ones(3)}, {"y": np.ones(3), "logits": np.ones(3)})
    assert all(np.isnan(value) for value in found.values())
    assert not any(each.passed for each in judge(found, {name: Limit(0.0, "any") for name in measure.names}))


def test_model_without_a_task_is_judged_by_its_vectors() -> None:
    y, z = RANDOM.normal(size=(4, 3)), RANDOM.normal(size=(4, 3))
    z_turned = z * np.array([[1], [1], [1], [-1]])
    found = results(Vectorwise(), {"y": y, "z": z_turned, "n": np.arange(3)}, {"y": y, "z": z, "n": np.arange(3)})
    assert found == {"mean_cosine": pytest.approx(0.75), "min_cosine": pytest.approx(-1)}


@pytest.mark.parametrize(
    ("task", "output", "activation", "kind"),
    [
        ("embed", "sentence_embedding", "softmax", Embeddings),
        ("encode", "last_hidden_state", "softmax", Embeddings),
        ("classify", "logits", "softmax", Labels),
        ("classify", "logits", "identity", Scores),
        ("fill-mask", "logits", "softmax", Distributions),
        ("generate", "logits", "softmax", Distributions),
        ("", "y", "softmax", Vectorwise),
        ("embed", "y", "softmax", Vectorwise),
    ],
)
def test_task_determines_the_metrics(task: str, output: str, activation: str, kind: type) -> None:
    manifest = Manifest(
        format=FORMAT, created_by="", source=Source("local", ""), family="", architecture="", task=task,
        dtype="float32", inputs=[], outputs=[TensorSpec(output, "float32", ("batch",))], activation=activation,
    )  # fmt: skip
    measure = measure_for(manifest)
    assert type(measure) is kind
    assert set(measure.names) <= set(LABELS) and ("perplexity_rise" in measure.names) == (task == "generate")


def test_every_metric_and_effect_has_a_bound() -> None:
    assert set(QUALITY) == set(LABELS) - {"wer", "cer", "cer_rise"}  # these are judged if the user gives a bound
    assert {name for name, limits in QUALITY.items() if set(limits) != set(Effect)} == set()
    assert set(QUALITY) > MORE_IS_BETTER


@pytest.mark.parametrize("name", sorted(QUALITY))
def test_bounds_of_approximations_are_never_tighter(name: str) -> None:
    exact, half = QUALITY[name][Effect.EXACT].value, QUALITY[name][Effect.FLOAT16].value
    sign = -1 if name in MORE_IS_BETTER else 1
    assert all(sign * exact <= sign * half <= sign * QUALITY[name][each].value for each in list(Effect)[2:])


def test_documentation_has_the_default_bounds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "validation.md").read_text(encoding="utf-8")
    for name, limits in QUALITY.items():
        sign = "≥" if name in MORE_IS_BETTER else "≤"
        values = " | ".join(f"{sign} {limits[effect].value:g}" for effect in list(Effect)[2:])
        assert f"| `{name}` | {LABELS[name]} | {values} |" in page


def test_given_bounds_replace_the_defaults() -> None:
    changes = Changes(Effect.WEIGHTS_4, ("rtn",), "float32")
    rules = rules_for(changes, ("kl_divergence", "same_top"), {"kl_divergence": 0.5, "max_abs": 3.0})
    assert rules.limits["kl_divergence"] == Limit(0.5, "given by the user")
    assert rules.limits["same_top"] == QUALITY["same_top"][Effect.WEIGHTS_4]
    assert rules.values.output.limit(1.0) == 3.0
    exact = rules_for(Changes(Effect.EXACT, (), "float32"), ("kl_divergence", "same_top"), {"same_top": 0.9})
    assert set(exact.limits) == {"same_top"}


def test_values_of_an_approximation_must_only_be_finite() -> None:
    assert approximate_bounds().output.limit(1.0) == np.inf
    assert approximate_bounds().cosine is None
    assert approximate_bounds({"min_cosine": 0.5}, "min_cosine").cosine is not None
    assert set(OF_VALUES) >= {"max_abs", "relative", "min_cosine", "layer"}
    assert quality_limits(Effect.INT8, ["mean_cosine"], {})["mean_cosine"].value < 1


def test_nan_fails_every_bound() -> None:
    limits = {"kl_divergence": Limit(1.0, ""), "same_top": Limit(0.0, "")}
    assert [each.passed for each in judge(dict.fromkeys(limits, float("nan")), limits)] == [False, False]


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_edit_distance_equals_the_library(found: list[int], wanted: list[int]) -> None:
    assert edits(found, wanted) == Levenshtein.distance(found, wanted)


def test_transcripts_are_compared_without_timestamps() -> None:
    def outputs(*rows: list[int]) -> dict[str, Any]:
        best = np.array([token for row in rows for token in row])
        return {"log_probs": np.eye(5, dtype=np.float32)[best], "output_lengths": np.array([len(row) for row in rows])}

    measure = Transcripts(blank=0)
    measure.add(measure.part({}, outputs([0, 1, 1, 0, 2], [3, 0, 0]), outputs([1, 1, 0, 0, 2], [3, 0, 3])))
    assert measure.results["token_errors"] == pytest.approx(1 / 4)  # the second 3 of the second recording
    assert measure.results["same_top"] == pytest.approx(5 / 8)


def test_nan_outputs_never_count_as_equal_transcripts() -> None:
    lengths = np.array([2])
    broken = {"log_probs": np.full((2, 3), np.nan, np.float32), "output_lengths": lengths}
    whole = {"log_probs": np.eye(3, dtype=np.float32)[:2], "output_lengths": lengths}
    measure = Transcripts(blank=0)
    measure.add(measure.part({}, broken, whole))
    assert measure.results["same_top"] == 0
