"""The pass contract.

A pass is a frozen dataclass: its fields are its options, its class attribute `name` is what recipes call it, and
`effect` says what it does to the numbers that a model computes: validation chooses its bounds by it.
Calling it with a model rewrites the model in place and returns it with `Counts`: what was rewritten, and the
reasons why the candidates that were looked at were left. A pass never leaves a model that fails the checker.

A pass with the class attribute `needs_calibration = True` is called with the calibration data too; what it observes
it leaves in `meta` of the model's values, for the passes after it. One with `takes_sensitivities = True` is called with
how sensitive the loss is to each weight, or with None where it is told to do without; one with both, with both.

Of one that stores weights in fewer bits, by its `effect`, it is reported how much of them it did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from intaglio.effect import Effect
from intaglio.graph_passes.calibration import CalibrationData
from intaglio.sensitivity_file import Sensitivities

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass
class Counts:
    """What a pass did: rewritten things by kind, and one line per candidate (or kind of it) that was left."""

    rewritten: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    layers: dict[str, dict[str, float]] = field(default_factory=dict)  # layer -> what was measured of it, by name
    asked: set[str] = field(default_factory=set)  # layers that an option leaves

    def add(self, kind: str, number: int = 1) -> None:
        """Count `number` more rewrites of this kind."""
        self.rewritten[kind] = self.rewritten.get(kind, 0) + number

    def leave(self, reason: str) -> None:
        """Note why a candidate was left, such as `bias is not 1-D: fc1.bias [4, 768]`; repeats are dropped."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def leave_as_asked(self, layer: str, reason: str) -> None:
        """Note that an option leaves a layer, and which."""
        self.leave(f"{layer}: {reason}")
        self.asked.add(layer)


class GraphPass(Protocol):
    """ONNX -> ONNX, in place."""

    name: ClassVar[str]

    @property
    def effect(self) -> Effect:
        """What it does to the numbers: a class attribute, or a property where it depends on the options."""
        ...

    def __call__(self, model: ir.Model) -> tuple[ir.Model, Counts]:
        """Rewrite `model` and return it with what was done."""
        ...


@runtime_checkable
class CalibratedPass(Protocol):
    """ONNX -> ONNX, in place, with the help of real inputs; it shows its own progress."""

    name: ClassVar[str]

    @property
    def effect(self) -> Effect:
        """What it does to the numbers: a class attribute, or a property where it depends on the options."""
        ...

    needs_calibration: ClassVar[Literal[True]]

    def __call__(self, model: ir.Model, data: CalibrationData) -> tuple[ir.Model, Counts]:
        """Rewrite `model`, or observe it on `data`, and return it with what was done."""
        ...


@runtime_checkable
class SensitivePass(Protocol):
    """ONNX -> ONNX, in place, with a file that says which weights matter; it shows its own progress."""

    name: ClassVar[str]

    @property
    def effect(self) -> Effect:
        """What it does to the numbers: a class attribute, or a property where it depends on the options."""
        ...

    takes_sensitivities: ClassVar[Literal[True]]

    def __call__(self, model: ir.Model, sensitivities: Sensitivities | None) -> tuple[ir.Model, Counts]:
        """Rewrite `model`, and return it with what was done."""
        ...


@runtime_checkable
class CompensatingPass(Protocol):
    """ONNX -> ONNX, in place, with a file that says which weights matter, and real inputs to make errors good on."""

    name: ClassVar[str]

    @property
    def effect(self) -> Effect:
        """What it does to the numbers: a class attribute, or a property where it depends on the options."""
        ...

    takes_sensitivities: ClassVar[Literal[True]]

    @property
    def needs_calibration(self) -> bool:
        """Whether it is to have real inputs, which is one of its options."""
        ...

    def __call__(
        self, model: ir.Model, sensitivities: Sensitivities | None, data: CalibrationData | None
    ) -> tuple[ir.Model, Counts]:
        """Rewrite `model`, and return it with what was done."""
        ...


Pass: TypeAlias = GraphPass | CalibratedPass | SensitivePass | CompensatingPass


def needs_sensitivities(graph_pass: Pass) -> bool:
    """Whether a pass goes by how sensitive the loss is to each weight, and is not told to do without."""
    return isinstance(graph_pass, SensitivePass) and not getattr(graph_pass, "unweighted", False)


def compresses_weights(graph_pass: Pass) -> bool:
    """Whether a pass stores weights in fewer bits."""
    return graph_pass.effect in (Effect.WEIGHTS_8, Effect.WEIGHTS_4, Effect.WEIGHTS_3)


def needs_calibration(graph_pass: Pass) -> bool:
    """Whether a pass has to see real inputs."""
    return bool(getattr(graph_pass, "needs_calibration", False))
