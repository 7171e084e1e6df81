"""The table of bounds: how far a model may be from the one it is compared with. There is no default tolerance.

Two models that do the same computation must agree in every value of their outputs, within `BOUNDS`. A model that
approximates another on purpose is judged by the measures of its task (`QUALITY`). Every bound has a reason. "Observed"
values were measured on the trained models of this repository: MiniLM (6 layers, 384 wide) on 64 English sentences,
without padding, and the language models of examples/language_models on held-out text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from intaglio.bundle.effect import Effect
from intaglio.errors import UsageError


@dataclass(frozen=True)
class Exact:
    """Every value is equal."""

    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error|, regardless of the largest |expected|."""
        return 0.0

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True)
class Absolute:
    """|error| is at most `value`, in the unit of the output."""

    value: float
    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error|, regardless of the largest |expected|."""
        return self.value

    def __str__(self) -> str:
        return f"≤ {self.value:g}"


@dataclass(frozen=True)
class Relative:
    """|error| is at most `value` times the largest magnitude of the expected output."""

    value: float
    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error| where the largest |expected| is `largest`."""
        return self.value * largest

    def __str__(self) -> str:
        return f"≤ {self.value:g} of the largest"


@dataclass(frozen=True)
class Finite:
    """No value is NaN or infinite where the expected one is finite; other measures judge the differences."""

    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error|: any finite number, independent of `largest`."""
        return math.inf

    def __str__(self) -> str:
        return "no NaN or Inf"


@dataclass(frozen=True)
class CosineFloor:
    """The cosine of every vector along the last axis with the expected one is at least `value`."""

    value: float
    reason: str


Bound = Exact | Absolute | Relative | Finite


@dataclass(frozen=True)
class Bounds:
    """The bounds for the values of outputs, and for those inside the graph."""

    output: Bound
    cosine: CosineFloor | None
    layer: Relative  # for a value inside the graph


@dataclass(frozen=True)
class Limit:
    """The bound of one measure: at most `value`, or at least `value` where more is better."""

    value: float
    reason: str


INTEGER = Exact("integers and booleans have no rounding")

# By the precision of the two sides.
BOUNDS = {
    "float32": Bounds(
        output=Relative(2e-5, "order of summation; observed 9e-7, and 4e-6 on logits of a random T5"),
        cosine=CosineFloor(0.99999, "order of summation; observed 1 - 1e-12"),
        layer=Relative(2e-5, "order of summation; observed 2.2e-6"),
    ),
    "float16": Bounds(
        output=Relative(5e-3, "11 bits of mantissa through 6 layers; observed 1.1e-3"),
        cosine=CosineFloor(0.9999, "11 bits of mantissa; observed 0.999997"),
        layer=Relative(1e-2, "11 bits of mantissa; observed 2.8e-3, after attention"),
    ),
    "bfloat16": Bounds(
        output=Relative(3e-2, "8 bits of mantissa through 6 layers; observed 8.8e-3"),
        cosine=CosineFloor(0.999, "8 bits of mantissa; observed 0.99988"),
        layer=Relative(8e-2, "8 bits of mantissa; observed 2.6e-2, after attention"),
    ),
}

# For values inside a graph that approximates another: it helps to find the cause, and does not affect the verdict.
APPROXIMATE_LAYER = Relative(0.3, "8-bit weights and activations through 6 layers; observed 0.11")

# Measure -> effect of the passes -> bound. For measures in `MORE_IS_BETTER` it is a lower bound.
QUALITY: dict[str, dict[Effect, Limit]] = {
    "mean_cosine": {
        Effect.EXACT: Limit(0.99999, "order of summation"),
        Effect.FLOAT16: Limit(0.9999, "11 bits of mantissa; observed 0.9999997"),
        Effect.WEIGHTS_8: Limit(0.999, "observed 0.9994 (int8-weights)"),
        Effect.WEIGHTS_4: Limit(0.97, "observed 0.984 (gptq); 0.957 (rtn) is too far off for a search"),
        Effect.WEIGHTS_3: Limit(0.95, "weights of 3 bits are for models that are trained for them, or larger"),
        Effect.INT8: Limit(0.99, "observed 0.9975 (int8-only)"),
        Effect.REPLACED: Limit(0.97, "the same as for weights of 4 bits"),
    },
    "min_cosine": {
        Effect.EXACT: Limit(0.9999, "order of summation"),
        Effect.FLOAT16: Limit(0.999, "11 bits of mantissa; observed 0.9999993"),
        Effect.WEIGHTS_8: Limit(0.997, "observed 0.9981 (int8-weights)"),
        Effect.WEIGHTS_4: Limit(0.92, "observed 0.940 (gptq)"),
        Effect.WEIGHTS_3: Limit(0.85, "weights of 3 bits are for models that are trained for them, or larger"),
        Effect.INT8: Limit(0.97, "observed 0.987 (int8-qdq)"),
        Effect.REPLACED: Limit(0.92, "the same as for weights of 4 bits"),
    },
    "rank_correlation": {
        Effect.EXACT: Limit(0.9999, "order of summation"),
        Effect.FLOAT16: Limit(0.999, "11 bits of mantissa"),
        Effect.WEIGHTS_8: Limit(0.998, "observed 0.9996 (int8-weights)"),
        Effect.WEIGHTS_4: Limit(0.97, "observed 0.987 (gptq)"),
        Effect.WEIGHTS_3: Limit(0.95, "weights of 3 bits are for models that are trained for them, or larger"),
        Effect.INT8: Limit(0.985, "observed 0.997 (int8-only)"),
        Effect.REPLACED: Limit(0.97, "the same as for weights of 4 bits"),
    },
    "label_agreement": {
        Effect.EXACT: Limit(0.999, "order of summation, and scores that are equal"),
        Effect.FLOAT16: Limit(0.99, "11 bits of mantissa, and scores that are nearly equal"),
        Effect.WEIGHTS_8: Limit(0.98, "one label of fifty, at the border of two classes"),
        Effect.WEIGHTS_4: Limit(0.95, "one label of twenty, at the border of two classes"),
        Effect.WEIGHTS_3: Limit(0.9, "one label of ten, at the border of two classes"),
        Effect.INT8: Limit(0.95, "one label of twenty, at the border of two classes"),
        Effect.REPLACED: Limit(0.95, "one label of twenty"),
    },
    "score_error": {
        Effect.EXACT: Limit(0.0001, "order of summation"),
        Effect.FLOAT16: Limit(0.01, "11 bits of mantissa"),
        Effect.WEIGHTS_8: Limit(0.05, "a twentieth of how far scores are apart"),
        Effect.WEIGHTS_4: Limit(0.2, "a fifth of how far scores are apart"),
        Effect.WEIGHTS_3: Limit(0.3, "a third of how far scores are apart"),
        Effect.INT8: Limit(0.2, "a fifth of how far scores are apart"),
        Effect.REPLACED: Limit(0.2, "a fifth of how far scores are apart"),
    },
    "kl_divergence": {
        Effect.EXACT: Limit(1e-05, "order of summation; observed 1e-10"),
        Effect.FLOAT16: Limit(0.001, "11 bits of mantissa; observed 3e-6"),
        Effect.WEIGHTS_8: Limit(0.002, "observed 0.0002 (int8-weights)"),
        Effect.WEIGHTS_4: Limit(0.02, "observed 0.0135 (rtn), 0.0052 (lut)"),
        Effect.WEIGHTS_3: Limit(0.06, "observed 0.036 (mixed)"),
        Effect.INT8: Limit(0.005, "observed 0.0008 (int8-qdq)"),
        Effect.REPLACED: Limit(0.02, "the same as for weights of 4 bits; observed 0.59 (prune-rows)"),
    },
    "perplexity_rise": {
        Effect.EXACT: Limit(0.01, "order of summation"),
        Effect.FLOAT16: Limit(0.2, "11 bits of mantissa; observed 0.002"),
        Effect.WEIGHTS_8: Limit(0.5, "observed 0.12 (int8-absmax)"),
        Effect.WEIGHTS_4: Limit(2.0, "observed 1.16 (awq), 0.6 (lut)"),
        Effect.WEIGHTS_3: Limit(3.0, "observed 1.3 (mixed)"),
        Effect.INT8: Limit(1.0, "observed 0.1 (int8-qdq)"),
        Effect.REPLACED: Limit(2.0, "the same as for weights of 4 bits; observed 74 (prune-rows)"),
    },
    "same_top": {
        Effect.EXACT: Limit(0.999, "order of summation, and tokens that are equally likely"),
        Effect.FLOAT16: Limit(0.98, "11 bits of mantissa; observed 0.997"),
        Effect.WEIGHTS_8: Limit(0.96, "observed 0.985 (int8-absmax)"),
        Effect.WEIGHTS_4: Limit(0.88, "observed 0.918 (awq)"),
        Effect.WEIGHTS_3: Limit(0.82, "observed 0.862 (mixed)"),
        Effect.INT8: Limit(0.94, "observed 0.977 (int8-qdq)"),
        Effect.REPLACED: Limit(0.88, "the same as for weights of 4 bits; observed 0.53 (prune-rows)"),
    },
    "token_errors": {
        Effect.EXACT: Limit(0.002, "order of summation: two tokens of a thousand that are nearly equally likely"),
        Effect.FLOAT16: Limit(0.005, "11 bits of mantissa; observed 0 of 4192 phonemes"),
        Effect.WEIGHTS_8: Limit(0.015, "observed 0.0055 of 4192 phonemes (int8-weights)"),
        Effect.WEIGHTS_4: Limit(0.08, "twice that of 8-bit activations"),
        Effect.WEIGHTS_3: Limit(0.15, "weights of 3 bits are for models that are trained for them, or larger"),
        Effect.INT8: Limit(0.04, "observed 0.028 of 4192 phonemes, and 0.011 calibrated on the speaker (int8-qdq)"),
        Effect.REPLACED: Limit(0.08, "the same as for weights of 4 bits"),
    },
    "wer_rise": {
        Effect.EXACT: Limit(0.1, "order of summation: one word of a thousand, between two that are equally likely"),
        Effect.FLOAT16: Limit(0.2, "11 bits of mantissa: two words of a thousand"),
        Effect.WEIGHTS_8: Limit(0.5, "five words of a thousand"),
        Effect.WEIGHTS_4: Limit(2.0, "twice that of 8-bit activations"),
        Effect.WEIGHTS_3: Limit(3.0, "weights of 3 bits are for models that are trained for them, or larger"),
        Effect.INT8: Limit(1.0, "one word of a hundred"),
        Effect.REPLACED: Limit(2.0, "the same as for weights of 4 bits"),
    },
}
MORE_IS_BETTER = frozenset({"mean_cosine", "min_cosine", "rank_correlation", "label_agreement", "same_top"})

# Bounds that can be given for any comparison, in addition to the measures of `QUALITY` for the model's task.
OF_VALUES = ("max_abs", "relative", "min_cosine", "layer")


def given_bounds(
    bound: Mapping[str, float] | None = None,
    max_abs: float | None = None,
    min_cosine: float | None = None,
    max_perplexity_rise: float | None = None,
) -> dict[str, float]:
    """The user's bounds by measure; the short forms take precedence."""
    short = {"max_abs": max_abs, "min_cosine": min_cosine, "perplexity_rise": max_perplexity_rise}
    return {**(bound or {}), **{name: value for name, value in short.items() if value is not None}}


def check_given(given: Mapping[str, float], known: Collection[str]) -> None:
    """Raise `UsageError` for a bound whose measure is not `known`, or whose value is out of range."""
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                f"bound {name!r}: expected one of {', '.join(dict.fromkeys(known))}, the measures for this model."
            )
        if name in MORE_IS_BETTER:
            if not -1 <= value <= 1:
                raise UsageError(f"bound {name}={value:g}: expected a number from -1 to 1.")
        elif not (math.isfinite(value) and value >= 0):
            raise UsageError(f"bound {name}={value:g}: expected a finite number, 0 or above.")


def bounds_for(precision: str, given: Mapping[str, float] | None = None) -> Bounds:
    """The bounds for the same computation in float32, float16 or bfloat16, replaced by the user's where given.

    Raises `UsageError` for a precision without bounds.
    """
    if precision not in BOUNDS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(BOUNDS)}.")
    return _replaced(BOUNDS[precision], given or {}, "min_cosine")


def approximate_bounds(given: Mapping[str, float] | None = None, cosine: str = "") -> Bounds:
    """The bounds for the values of a model that is judged by its task: finite, and those given by the user.

    `cosine`: the name of the given bound for every vector's cosine; "": none.
    """
    finite = Finite("an approximation, which is judged by the measures of its task")
    return _replaced(Bounds(finite, None, APPROXIMATE_LAYER), given or {}, cosine)


def _replaced(bounds: Bounds, given: Mapping[str, float], cosine: str) -> Bounds:
    reason = "given by the user"
    if "relative" in given:
        bounds = replace(bounds, output=Relative(given["relative"], reason))
    if "max_abs" in given:
        bounds = replace(bounds, output=Absolute(given["max_abs"], reason))
    if cosine in given:
        bounds = replace(bounds, cosine=CosineFloor(given[cosine], reason))
    if "layer" in given:
        bounds = replace(bounds, layer=Relative(given["layer"], reason))
    return bounds


def quality_limits(effect: Effect, measures: Collection[str], given: Mapping[str, float]) -> dict[str, Limit]:
    """Measure -> its bound: the user's, else the default for `effect`."""
    return {
        name: Limit(given[name], "given by the user") if name in given else QUALITY[name][effect] for name in measures
    }
