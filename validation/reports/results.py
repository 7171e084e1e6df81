"""The results of a validation, as returned and as written to the JSON report. JSON has null for infinity."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from intaglio.accuracy.default_bounds import Bounds
from intaglio.runtime.text.inputs import InputsUsed
from intaglio.validation.comparison.compare import Compared, Difference
from intaglio.validation.measures.measures import Measured
from intaglio.validation.scores.perplexity import Perplexity
from intaglio.validation.scores.word_errors import RecordingErrors, WordErrors


class OutputError(msgspec.Struct):
    """The difference of one output from the expected one, over all inputs, and its bounds."""

    max_abs: float
    mean_abs: float
    cosine: float  # smallest along the last axis
    relative: float  # max_abs / largest |expected|
    passed: bool
    bound: str  # in words, such as "≤ 2e-05 of the largest"
    reason: str  # for the bound
    limit: float  # the bound on |error|, as a number
    cosine_floor: float | None  # None for integers, and if it is not judged
    broken: list[str]  # violated bounds, in words
    values: int
    zeros: int  # values without any error
    nans: int
    infinities: int
    histogram: list[int]  # of log10 |error|, over compare.HISTOGRAM_EDGES


class LayerError(msgspec.Struct):
    """The difference of one value inside the graph from the expected one."""

    layer: str  # its module path, or else the value's name
    value: str
    max_abs: float
    relative: float
    cosine: float
    bound: float  # on `relative`
    passed: bool


class ModelRecord(msgspec.Struct):
    """One side of the comparison: what ran, and the SHA-256 of the bundle's files."""

    name: str
    bundle: str
    files: dict[str, str]


class Report(msgspec.Struct, kw_only=True):
    """The content of a report."""

    passed: bool
    judged: bool  # False: nothing was compared, only measured
    changes: str  # passes applied to one side only, by which the bounds were chosen
    measures: list[Measured]  # of the model's task, where these are what judges
    actual: ModelRecord
    expected: ModelRecord | None  # None if nothing was compared
    outputs: dict[str, OutputError] = {}
    not_compared: list[str] = []  # outputs of the bundle that the other side does not have
    layers: list[LayerError] = []  # block by block, in execution order, on the worst batch
    bisected: bool = False
    first_layer_beyond: LayerError | None = None
    inputs: InputsUsed
    environment: dict[str, str]
    written: str  # UTC
    perplexity: Perplexity | None = None
    word_errors: WordErrors | None = None


class Validated(msgspec.Struct, kw_only=True):
    """The result of `validate`."""

    passed: bool
    outputs: dict[str, OutputError]
    report: str  # path of the HTML report; the JSON report is next to it
    judged: bool = True  # False: nothing was compared, only measured
    changes: str = ""  # passes applied to one side only, by which the bounds were chosen
    measures: list[Measured] = []  # of the model's task, where these are what judges
    not_compared: list[str] = []
    first_layer_beyond: LayerError | None = None
    # Only with --perplexity:
    perplexity: float | UnsetType = UNSET
    kl_divergence: float | UnsetType | None = UNSET  # in nats a token; None without --against
    tokens: int | UnsetType = UNSET  # scored ones
    against_perplexity: float | UnsetType | None = UNSET
    same_top: float | UnsetType | None = UNSET  # fraction of the tokens with the same top-1 prediction
    # Only with --wer; rates in percent:
    wer: float | UnsetType = UNSET
    cer: float | UnsetType = UNSET
    words: int | UnsetType = UNSET  # of the list's texts
    substitutions: int | UnsetType = UNSET
    deletions: int | UnsetType = UNSET
    insertions: int | UnsetType = UNSET
    recordings: int | UnsetType = UNSET
    seconds: float | UnsetType = UNSET  # of audio
    real_time_factor: float | UnsetType | None = UNSET  # None for work that an executor divided
    worst: list[RecordingErrors] | UnsetType = UNSET
    against_wer: float | UnsetType | None = UNSET  # None without --against
    against_cer: float | UnsetType | None = UNSET


def output_error(compared: Compared) -> OutputError:
    """`compared` as numbers and text; an output that could not be compared has an infinite error."""
    seen = compared.difference
    missing = bool(compared.mismatch)
    return OutputError(
        max_abs=float("inf") if missing else seen.max_abs,
        mean_abs=float("inf") if missing else seen.mean_abs,
        cosine=-1.0 if missing else seen.cosine,
        relative=float("inf") if missing else seen.relative,
        passed=bool(compared),
        bound=str(compared.bound),
        reason=compared.bound.reason,
        limit=compared.bound.limit(seen.largest),
        cosine_floor=compared.cosine_floor,
        broken=compared.broken,
        values=seen.count,
        zeros=seen.zeros,
        nans=seen.nans,
        infinities=seen.infinities,
        histogram=list(seen.histogram),
    )


def layer_error(layer: str, value: str, difference: Difference, bounds: Bounds, beyond: bool) -> LayerError:
    """A layer's difference in the form of the report."""
    bound = bounds.layer.value
    return LayerError(
        layer, value, difference.max_abs, difference.relative, difference.cosine, bound, passed=not beyond
    )
