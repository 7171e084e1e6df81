"""Measures of a model's task, from the outputs of the model and of the model that it approximates.

    embeddings      cosine of each text's two embeddings (mean, smallest), and Spearman's correlation of the
                    similarities of all pairs of texts
    labels          fraction of texts with the same label, or the difference of a regression's scores
    distributions   over the vocabulary: KL divergence, fraction of equal top-1 tokens, and for a decoder the rise of
                    its perplexity on the text
    transcripts     of a speech recogniser: share of tokens that are recognised differently, and of equal frames

Their bounds are in `intaglio.accuracy.default_bounds.QUALITY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.accuracy.default_bounds import MORE_IS_BETTER, Limit
from intaglio.runtime.text.inputs import MASK
from intaglio.validation.measures.distributions import Sums, perplexity_rise

Array: TypeAlias = npt.NDArray[np.generic]
Vectors: TypeAlias = npt.NDArray[np.float64]
Part = TypeVar("Part")  # what a batch contributes to a measure; it can be pickled

# Name -> label for people.
LABELS = {
    "mean_cosine": "cosine of embeddings, mean",
    "min_cosine": "cosine of embeddings, smallest",
    "rank_correlation": "order of similarities (Spearman)",
    "label_agreement": "share of equal labels",
    "score_error": "mean error of scores / their spread",
    "kl_divergence": "KL divergence, nats a token",
    "perplexity_rise": "rise of the perplexity, %",
    "same_top": "share of equal most likely tokens",
    "token_errors": "tokens recognised differently, share",
    "wer_rise": "rise of the word error rate, points",
    "cer_rise": "rise of the character error rate, points",
    "wer": "word error rate, %",
    "cer": "character error rate, %",
}


class Measured(msgspec.Struct):
    """One measure, its bound, and the reason of the bound."""

    name: str  # of `LABELS`
    value: float
    bound: float
    at_least: bool  # whether more is better
    passed: bool
    reason: str  # of the bound

    def __str__(self) -> str:
        relation = "at least" if self.at_least else "at most"
        return f"{LABELS[self.name]}: {self.value:.6g}, expected {relation} {self.bound:g}"


class Measure(ABC, Generic[Part]):
    """Collects what each batch contributes. `names` are its results, `outputs` the outputs it reads."""

    names: tuple[str, ...]
    outputs: tuple[str, ...] = ("logits",)

    def __init__(self) -> None:
        self._comparable = False
        self._parts: list[Part] = []

    def part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[bool, Part | None]:
        """What `add` needs of a batch: its inputs, and the outputs of both models without padding.

        Whether the outputs can be compared, and what they contribute, if they can and have values.
        """
        pairs = [(actual.get(name), expected.get(name)) for name in self.outputs]
        comparable = all(
            found is not None and wanted is not None and found.shape == wanted.shape for found, wanted in pairs
        )
        measured = comparable and all(found.size for found, _ in pairs if found is not None)
        return comparable, self._part(feeds, actual, expected) if measured else None

    def add(self, part: tuple[bool, Part | None]) -> None:
        """Add the next batch: what `part` returned, in this process or another."""
        self._comparable, measured = part
        if measured is not None:
            self._parts.append(measured)

    @property
    def results(self) -> dict[str, float]:
        """Name -> value, over all batches; NaN if one side lacks an output, or has another shape.

        Outputs without any value do not differ.
        """
        if self._comparable and self._parts:
            return self._results(self._parts)
        return {name: float(name in MORE_IS_BETTER) if self._comparable else float("nan") for name in self.names}

    @abstractmethod
    def _part(self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]) -> Part: ...

    @abstractmethod
    def _results(self, parts: Sequence[Part]) -> dict[str, float]: ...


class Embeddings(Measure[tuple[Vectors, Vectors]]):
    """Embedding vectors of texts."""

    names = ("mean_cosine", "min_cosine", "rank_correlation")

    def __init__(self, output: str):
        """`output` holds one vector per text, or one per token, which are averaged."""
        super().__init__()
        self.outputs = (output,)

    def _part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[Vectors, Vectors]:
        """The vectors."""
        (output,) = self.outputs
        return self._vectors(feeds, actual[output]), self._vectors(feeds, expected[output])

    def _vectors(self, feeds: Mapping[str, Array], found: Array) -> Vectors:
        """[texts, width]: the mean over the tokens of each text, which are consecutive rows without padding."""
        vectors = found.astype(np.float64)
        texts = len(next(iter(feeds.values())))
        if vectors.ndim == 2 and len(vectors) == texts:
            return vectors
        if vectors.ndim == 3:
            return np.asarray(vectors.mean(axis=1))
        lengths = np.count_nonzero(feeds[MASK], axis=1)
        return np.stack([part.mean(axis=0) for part in np.split(vectors, np.cumsum(lengths)[:-1])])

    def _results(self, parts: Sequence[tuple[Vectors, Vectors]]) -> dict[str, float]:
        """See the base class; the rank correlation needs three texts and is 1 for fewer."""
        actual, expected = (unit(np.concatenate(rows)) for rows in zip(*parts, strict=True))
        cosines = (actual * expected).sum(axis=1)
        pairs = np.triu_indices(len(actual), 1)
        order = rank_correlation((actual @ actual.T)[pairs], (expected @ expected.T)[pairs])
        return {
            "mean_cosine": min(float(cosines.mean()), 1.0),
            "min_cosine": min(float(cosines.min()), 1.0),
            "rank_correlation": order,
        }


class Vectorwise(Measure[list[Vectors]]):
    """All outputs of a model with an unknown task: the vectors along the last axes."""

    names = ("mean_cosine", "min_cosine")
    outputs = ()

    def _part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> list[Vectors]:
        """The cosines of the floating-point outputs that both have with the same shape."""
        cosines = []
        for name, found in actual.items():
            wanted = expected.get(name)
            if wanted is None or wanted.shape != found.shape or not np.issubdtype(found.dtype, np.floating):
                continue
            if not found.size:
                cosines.append(np.ones(1))  # nothing differs
                continue
            width = found.shape[-1] if found.ndim else 1
            left, right = (each.astype(np.float64).reshape(-1, width) for each in (found, wanted))
            cosines.append((unit(left) * unit(right)).sum(axis=1))
        return cosines

    def _results(self, parts: Sequence[list[Vectors]]) -> dict[str, float]:
        """See the base class; NaN if there was nothing to compare."""
        cosines = np.concatenate([each for part in parts for each in part] or [np.array([np.nan])])
        return {"mean_cosine": min(float(cosines.mean()), 1.0), "min_cosine": min(float(cosines.min()), 1.0)}


class Labels(Measure[tuple[int, int]]):
    """A classifier's decisions: one class, or several classes at once (`activation` "sigmoid")."""

    names = ("label_agreement",)

    def __init__(self, activation: str = "softmax"):
        super().__init__()
        self._several = activation == "sigmoid"

    def _part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[int, int]:
        """The number of texts whose labels are all equal, and of all; a probability of one half is a logit of 0."""
        found, wanted = floats(actual["logits"]), floats(expected["logits"])
        if self._several:
            same = ((found > 0) == (wanted > 0)).all(axis=-1)
        else:
            same = found.argmax(axis=-1) == wanted.argmax(axis=-1)
        return int(np.count_nonzero(same & np.isfinite(found).all(axis=-1))), same.size

    def _results(self, parts: Sequence[tuple[int, int]]) -> dict[str, float]:
        """The fraction of these texts."""
        same, texts = map(sum, zip(*parts, strict=True))
        return {"label_agreement": same / texts}


class Scores(Measure[tuple[Vectors, Vectors]]):
    """A regression's scores."""

    names: tuple[str, ...] = ("score_error",)

    def _part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[Vectors, Vectors]:
        """The scores."""
        return actual["logits"].astype(np.float64), expected["logits"].astype(np.float64)

    def _results(self, parts: Sequence[tuple[Vectors, Vectors]]) -> dict[str, float]:
        """The error in units of the standard deviation of the expected scores over the texts."""
        actual, expected = (np.concatenate(rows) for rows in zip(*parts, strict=True))
        error, spread = float(np.abs(actual - expected).mean()), float(expected.std(axis=0).mean())
        return {"score_error": error / spread if spread else (0.0 if error == 0 else float("inf"))}


class Distributions(Measure[Sums]):
    """Distributions over a vocabulary, of the token at each position or (`continues`) of the next one."""

    def __init__(self, continues: bool):
        super().__init__()
        self.names = ("kl_divergence", *(("perplexity_rise",) if continues else ()), "same_top")
        self._continues = continues

    def _part(self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]) -> Sums:
        """Score every token; the last one of a decoder's sequence has no target."""
        found, wanted, targets = actual["logits"], expected["logits"], None
        if self._continues:
            ids = np.asarray(feeds["input_ids"], np.int64)
            found, wanted, targets = found[:, :-1], wanted[:, :-1], ids[:, 1:].reshape(-1)
        width = found.shape[-1]
        sums = Sums()
        sums.add(floats(found).reshape(-1, width), floats(wanted).reshape(-1, width), targets)
        return sums

    def _results(self, parts: Sequence[Sums]) -> dict[str, float]:
        """See `LABELS`."""
        sums = sum(parts, Sums())
        return distribution_results(
            sums.kl_divergence,
            sums.same_top / sums.tokens,
            perplexity_rise(sums.perplexity, sums.against_perplexity) if self._continues else None,
        )


def distribution_results(kl_divergence: float, same_top: float, rise: float | None) -> dict[str, float]:
    """The results of comparing distributions; `rise` is None without a perplexity."""
    risen = {} if rise is None else {"perplexity_rise": rise}
    return {"kl_divergence": kl_divergence, **risen, "same_top": same_top}


def judge(results: Mapping[str, float], limits: Mapping[str, Limit]) -> list[Measured]:
    """Compare the results with their limits; NaN violates every limit."""
    judged = []
    for name, limit in limits.items():
        value, at_least = results[name], name in MORE_IS_BETTER
        passed = value >= limit.value if at_least else value <= limit.value
        judged.append(Measured(name, value, limit.value, at_least, passed, limit.reason))
    return judged


def unit(vectors: Vectors) -> Vectors:
    """Each row divided by its norm; a row of zeros stays zero, so that its cosine with any other is 0."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1.0, lengths))


def rank_correlation(actual: Vectors, expected: Vectors) -> float:
    """Spearman's correlation of two lists of numbers; 1 for fewer than two, and if both are constant."""
    if len(actual) < 2:
        return 1.0
    left, right = _ranks(actual), _ranks(expected)
    left, right = left - left.mean(), right - right.mean()
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    if lengths == 0:
        return 1.0 if not left.any() and not right.any() else 0.0
    return min(float(left @ right) / lengths, 1.0)


def _ranks(values: Vectors) -> Vectors:
    """The rank of each number; equal numbers share their mean rank. All NaN if one is NaN."""
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse], np.float64)


def floats(array: Array) -> npt.NDArray[np.floating]:
    """The array, as float32 if it holds no floating-point numbers."""
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float32)  # type: ignore[return-value]
