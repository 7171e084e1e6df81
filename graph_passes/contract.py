"""The pass contract.

A pass is a frozen dataclass derived from `Pass`: its fields are its options, its class attribute `name` is what recipes
call it, `effect` says what it does to the numbers that a model computes (validation chooses its bounds by it), and
`needs` what it takes besides the graph. Every pass is called alike: with a model, which it rewrites in place, and with
`PassInputs`. It returns the model with `Counts`: what was rewritten, and the reasons why the candidates that were
looked at were left. A pass never leaves a model that fails the checker.

What a pass observes of the activations it leaves in `meta` of the model's values, for the passes after it.

Of a pass that stores weights in fewer bits, by its `effect`, it is reported how much of them it did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeVar

from intaglio.bundle import Manifest
from intaglio.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.calibration import CalibrationData
from intaglio.graph_passes.user_code import UserCode
from intaglio.progress import step
from intaglio.sensitivity_file import Sensitivities

if TYPE_CHECKING:
    import onnx_ir as ir


Given = TypeVar("Given")


@dataclass
class Counts:
    """What a pass did: rewritten things by kind, and one line per candidate (or kind of it) that was left."""

    rewritten: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    layers: dict[str, dict[str, float]] = field(default_factory=dict)  # layer -> what was measured of it, by name
    asked: set[str] = field(default_factory=set)  # layers that an option leaves
    facts: dict[str, str] = field(default_factory=dict)  # what the manifest records beside the options

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


class Need(Enum):
    """What a pass may take besides the graph. The value is how an error calls it, and how it is given."""

    SENSITIVITY = "sensitivities. Give a file of intaglio sensitivity, or set the option that does without"
    CALIBRATION = "calibration text. Give --calibration FILE, or set the option that does without"
    CODE = "permission to run the recipe's own code. Give --allow-code (in Python allow_code=True)"


@dataclass(frozen=True)
class PassInputs:
    """What passes take besides the graph: what some pass of the recipe needs is prepared, the rest is None.

    A pass reads the properties `calibration`, `sensitivities` and `code`, which are never None: a pass is not called
    without what it `needs`. `manifest` is that of the bundle that the graph came in; None for a graph without one. The
    number of threads and the progress bars are the process's: `intaglio.threads`, `intaglio.progress`.
    """

    manifest: Manifest | None = None
    calibration_data: CalibrationData | None = None
    sensitivity_file: Sensitivities | None = None
    user_code: UserCode | None = None

    @property
    def calibration(self) -> CalibrationData:
        """The real inputs that activations are observed on."""
        return _present(self.calibration_data, Need.CALIBRATION)

    @property
    def sensitivities(self) -> Sensitivities:
        """How sensitive the loss is to each weight."""
        return _present(self.sensitivity_file, Need.SENSITIVITY)

    @property
    def code(self) -> UserCode:
        """The functions that the recipe names."""
        return _present(self.user_code, Need.CODE)

    def check(self, graph_pass: Pass) -> None:
        """Raise `GraphError` where something is missing that the pass needs."""
        given = {
            Need.SENSITIVITY: self.sensitivity_file,
            Need.CALIBRATION: self.calibration_data,
            Need.CODE: self.user_code,
        }
        for need in Need:
            if need in graph_pass.needs and given[need] is None:
                raise GraphError(f"{graph_pass.name}: has no {need.value}.")


def _present(given: Given | None, need: Need) -> Given:
    if given is None:
        raise GraphError(f"a pass took {need.name.lower()} that it does not state. Add Need.{need.name} to its needs.")
    return given


@dataclass(frozen=True)
class Pass(ABC):
    """ONNX -> ONNX, in place."""

    name: ClassVar[str]
    shows_progress: ClassVar[bool] = False  # by a bar of its own, between whose steps it may be interrupted
    main_option: ClassVar[str | None] = None  # the one that `name: value` sets in a recipe file

    @property
    @abstractmethod
    def effect(self) -> Effect:
        """What it does to the numbers: a class attribute, or a property where it depends on the options."""

    @property
    def needs(self) -> frozenset[Need]:
        """What it takes besides the graph: a class attribute, or a property where it depends on the options."""
        return frozenset()

    def __post_init__(self) -> None:  # noqa: B027
        """Raise `GraphError` for options that are out of range; a pass that checks its own calls this one too."""

    def prepare(self, inputs: PassInputs) -> None:  # noqa: B027
        """Raise for what can be known to fail, before any pass of a recipe has run."""

    def __call__(self, model: ir.Model, inputs: PassInputs = PassInputs()) -> tuple[ir.Model, Counts]:
        """Rewrite `model`, and return it with what was done. Raises `GraphError` where `inputs` lacks what it needs."""
        inputs.check(self)
        with nullcontext() if self.shows_progress else step(self.name):
            return self.rewrite(model, inputs)

    @abstractmethod
    def rewrite(self, model: ir.Model, inputs: PassInputs) -> tuple[ir.Model, Counts]:
        """Do what the class says; `inputs` has all that the pass needs."""

    @property
    def compresses_weights(self) -> bool:
        """Whether it stores weights in fewer bits."""
        return self.effect in (Effect.WEIGHTS_8, Effect.WEIGHTS_4, Effect.WEIGHTS_3)
