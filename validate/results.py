"""What a validation found, as it is returned and as it stands in the JSON report. JSON writes null for infinity."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from intaglio.bounds import Bounds
from intaglio.runtime.inputs import InputsUsed
from intaglio.validate.compare import Compared, Difference
from intaglio.validate.measures import Measured
from intaglio.validate.perplexity import Perplexity


class OutputError(msgspec.Struct):
    """How far one output is from the expected one, over all inputs, and what it was held to."""

    max_abs: float
    mean_abs: float
    cosine: float  # smallest along the last axis
    relative: float  # max_abs / largest |expected|
    passed: bool
    bound: str  # in words, such as "≤ 2e-05 of the largest"
    reason: str  # why the bound is what it is
    limit: float  # the bound on |error|, as a number
    cosine_floor: float | None  # None for integers, and where it is not judged
    broken: list[str]  # what does not hold, in words
    values: int
    zeros: int  # values without any error
    nans: int
    infinities: int
    histogram: list[int]  # of log10 |error|, over compare.HISTOGRAM_EDGES


class LayerError(msgspec.Struct):
    """How far one value inside the graph is from the expected one."""

    layer: str  # its module path, or the value's name where it has none
    value: str
    max_abs: float
    relative: float
    cosine: float
    bound: float  # on `relative`
    passed: bool


class Side(msgspec.Struct):
    """One end of the comparison: what ran, and the SHA-256 of the bundle's files."""

    name: str
    bundle: str
    files: dict[str, str]


class Report(msgspec.Struct):
    """Everything that a report holds."""

    passed: bool
    judged: bool  # False: nothing was compared, only measured
    changes: str  # what was done to one side and not to the other, by which the bounds were chosen
    measures: list[Measured]  # of the model's task, where these are what judges
    actual: Side
    expected: Side | None  # None for a perplexity alone
    outputs: dict[str, OutputError]
    not_compared: list[str]  # outputs of the bundle that the other end does not have
    layers: list[LayerError]  # block by block, in execution order, on the worst batch
    bisected: bool
    first_layer_beyond: LayerError | None
    inputs: InputsUsed
    environment: dict[str, str]
    written: str  # UTC
    perplexity: Perplexity | None = None


class Validated(msgspec.Struct, kw_only=True):
    """What `validate` returns."""

    passed: bool
    outputs: dict[str, OutputError]
    report: str  # path of the HTML report; the JSON one stands beside it
    judged: bool = True  # False: nothing was compared, only measured
    changes: str = ""  # what was done to one side and not to the other, by which the bounds were chosen
    measures: list[Measured] = []  # of the model's task, where these are what judges
    not_compared: list[str] = []
    first_layer_beyond: LayerError | None = None
    # Only with --perplexity:
    perplexity: float | UnsetType = UNSET
    kl_divergence: float | UnsetType | None = UNSET  # in nats a token; None without --against
    tokens: int | UnsetType = UNSET  # that were scored
    against_perplexity: float | UnsetType | None = UNSET
    same_top: float | UnsetType | None = UNSET  # part of the tokens where both think the same one most probable


def output_error(compared: Compared) -> OutputError:
    """`compared` in numbers and words; an output that could not be compared has an infinite error."""
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
    """A layer's difference, as it is reported."""
    bound = bounds.layer.value
    return LayerError(
        layer, value, difference.max_abs, difference.relative, difference.cosine, bound, passed=not beyond
    )
