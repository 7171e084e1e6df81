"""The difference between two graphs, from the passes that their manifests record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from intaglio.bundle.bundle import Manifest, PassRecord
from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.pass_table import PASSES
from intaglio.plugins.registry import PACKED

ORDER = list(Effect)  # from none to largest
HALF = ("float16", "bfloat16")
NAMED = 3  # passes that the reason names
GROUPED = {"rtn", "gptq", "awq"}  # passes that store weights in groups
OTHER_WEIGHTS = "another checkpoint"
CACHED = {8: Effect.INT8, 4: Effect.WEIGHTS_4}  # bits of cached keys and values -> the effect with the same bounds


@dataclass(frozen=True)
class Changes:
    """The difference between two sides of a comparison.

    `effect`: the largest effect of the passes that only one side had, and of the sides' arithmetic.
    `passes`: the names of the passes with this effect, or `OTHER_WEIGHTS`; empty if the graphs are the same, or differ
    only by exact passes.
    `precision`: the coarser of the two sides' floating-point dtypes.
    """

    effect: Effect
    passes: tuple[str, ...]
    precision: str

    @property
    def approximate(self) -> bool:
        """Whether one side approximates the other on purpose, so that the task's measures must judge."""
        return ORDER.index(self.effect) > ORDER.index(Effect.FLOAT16)

    def with_cache(self, bits: int | None) -> Changes:
        """These, and one side's caches of keys and values in 8 or 4 bits; None: as its graph has them."""
        if bits is None or ORDER.index(CACHED[bits]) < ORDER.index(self.effect):
            return self
        passes = self.passes if CACHED[bits] is self.effect else ()
        return replace(self, effect=CACHED[bits], passes=(f"caches of {bits} bits", *passes))

    @property
    def reason(self) -> str:
        """The reason for the choice of bounds, in words."""
        if self.passes:
            named, more = self.passes[:NAMED], len(self.passes) - NAMED
            return f"{self.effect.description} ({', '.join(named)}{f' and {more} more passes' if more > 0 else ''})"
        return f"{self.effect.description} in {self.precision}"


def changes_between(actual: Manifest, expected: Manifest | None) -> Changes:
    """The changes between `actual` and `expected`; None is the source checkpoint."""
    theirs = expected.passes if expected is not None else []
    common = 0
    while common < min(len(actual.passes), len(theirs)) and _same(actual.passes[common], theirs[common]):
        common += 1
    shared = actual.passes[:common]
    apart = [*actual.passes[common:], *theirs[common:]]
    sides = [actual, *([expected] if expected is not None else [])]
    precision = _precision(sides)
    effects = [(effect_of(record), record.name) for record in apart]
    if expected is not None and _other_weights(actual, expected):
        effects.append((Effect.REPLACED, OTHER_WEIGHTS))
    largest = max([*(effect for effect, _ in effects), _arithmetic(shared, apart, sides, precision)], key=ORDER.index)
    names = [name for effect, name in effects if effect is largest and effect is not Effect.EXACT]
    return Changes(largest, tuple(dict.fromkeys(names)), _coarser(largest, precision))


def effect_of(record: PassRecord) -> Effect:
    """The effect of the recorded pass. An unknown one, such as training, counts as the largest."""
    kind = PASSES.get(record.name)
    if kind is None:
        return Effect.REPLACED
    try:
        effect: Effect = msgspec.convert(record.options, kind).effect
    except (msgspec.ValidationError, GraphError):  # options of another version
        return Effect.REPLACED
    return effect


def _other_weights(actual: Manifest, expected: Manifest) -> bool:
    """Whether the two were made from different checkpoints, as far as recorded."""
    ours, theirs = actual.source, expected.source
    return bool(ours.sha256 and theirs.sha256) and (ours.sha256, ours.adapter) != (theirs.sha256, theirs.adapter)


def _same(left: PassRecord, right: PassRecord) -> bool:
    one, other = ((each.graph, each.name, each.options, each.counts) for each in (left, right))
    return one == other


def _arithmetic(
    shared: Sequence[PassRecord], apart: Sequence[PassRecord], sides: Sequence[Manifest], precision: str
) -> Effect:
    """The effect of different arithmetic between two runs of the same graph whose operators round their inputs.

    Activations in Q/DQ form can differ by one step if another runtime sums in another order. The CPU kernels for
    compressed weights keep 16 or 8 bits of the activations, other backends all of them; ONNX Runtime's kernels for
    inlined weights in groups keep 8.
    """
    names = {record.name for record in shared}
    if "quantize_activations" in names and "integer_linear" not in names:
        return Effect.INT8
    if names & GROUPED and any(record.name == "inline" for record in apart):
        return Effect.INT8
    chosen = [*(record.options.get("activation_bits") for record in shared), *(side.activation_bits for side in sides)]
    if 8 in chosen:
        return Effect.INT8
    if precision in HALF or 16 in chosen:
        return Effect.FLOAT16
    return Effect.FLOAT16 if any(map(_keeps_codes, sides)) else Effect.EXACT


def _keeps_codes(side: Manifest) -> bool:
    """Whether products with codes came with the checkpoint, which are exported with 16 bits of the activations."""
    return not PACKED.isdisjoint(side.custom_operators) and not any(
        "activation_bits" in record.options for record in side.passes
    )


def _precision(sides: Iterable[Manifest]) -> str:
    found = {dtype for side in sides for dtype in _float_dtypes(side)}
    return next((dtype for dtype in reversed(HALF) if dtype in found), "float32")


def _float_dtypes(manifest: Manifest) -> set[str]:
    """The floating-point dtypes of weights, inputs and outputs, and of the arithmetic after passes."""
    halved = {"float16" for record in manifest.passes if effect_of(record) is Effect.FLOAT16}
    if manifest.audio is not None:  # rounded features amplify the order of summation
        halved.add(manifest.audio.precision)
    return {manifest.dtype, *(spec.dtype for spec in (*manifest.inputs, *manifest.outputs)), *halved}


def _coarser(effect: Effect, precision: str) -> str:
    """The precision whose bounds apply: those of float16 for 16-bit activations in a float32 graph."""
    return "float16" if effect is Effect.FLOAT16 and precision == "float32" else precision
