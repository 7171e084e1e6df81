"""The pass contract.

A pass is a frozen dataclass derived from `Pass`: its fields are its options, the class attribute `name` is its name in
recipes, `effect` is how it changes the numbers that a model computes (validation chooses its bounds by it), and `needs`
lists its inputs besides the graph. All passes are called the same way: with a model, which they rewrite in place, and
`PassInputs`. A pass returns the model with `Counts`: what was rewritten, and the reasons why other candidates were
left. The model always passes the checker afterwards.

Statistics of activations are stored in `meta` of the model's values, for later passes.

For a pass that stores weights in fewer bits, according to its `effect`, the compressed fraction is reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeVar

from intaglio.bundle.bundle import Manifest
from intaglio.bundle.effect import Effect
from intaglio.display.progress import step
from intaglio.errors import GraphError
from intaglio.executors.executor import INLINE, Executor
from intaglio.graph_passes.calibration.data import CalibrationData
from intaglio.graph_passes.finished_layers import NOTHING_FINISHED, FinishedLayers
from intaglio.graph_passes.user.code import UserCode
from intaglio.sensitivity_file import Sensitivities

if TYPE_CHECKING:
    import onnx_ir as ir


Given = TypeVar("Given")


@dataclass
class Counts:
    """Result of a pass: numbers of rewrites by kind, and one line per candidate (or kind of it) that was left."""

    rewritten: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    layers: dict[str, dict[str, float]] = field(default_factory=dict)  # layer -> measurements by name
    asked: set[str] = field(default_factory=set)  # layers left because of an option
    facts: dict[str, str] = field(default_factory=dict)  # recorded in the manifest besides the options

    def add(self, kind: str, number: int = 1) -> None:
        """Count `number` more rewrites of this kind."""
        self.rewritten[kind] = self.rewritten.get(kind, 0) + number

    def leave(self, reason: str) -> None:
        """Note why a candidate was left, e.g. `bias is not 1-D: fc1.bias [4, 768]`; duplicates are dropped."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def note(self, kind: str, reason: str | None) -> None:
        """Count one more rewrite of this kind, or note the `reason` why it was left."""
        if reason:
            self.leave(reason)
        else:
            self.add(kind)

    def skip_requested(self, layer: str, reason: str) -> None:
        """Note that a layer was left because of an option."""
        self.leave(f"{layer}: {reason}")
        self.asked.add(layer)


class Need(Enum):
    """Inputs of a pass besides the graph. The value is its name in errors, and how to provide it."""

    SENSITIVITY = "sensitivities. Give a file of intaglio sensitivity, or set the option that replaces them"
    CALIBRATION = "calibration text. Give --calibration FILE, or set the option that replaces it"
    CODE = "permission to run the recipe's own code. Give --allow-code (in Python allow_code=True)"


@dataclass(frozen=True)
class PassInputs:
    """Inputs of passes besides the graph; None for those that no pass of the recipe needs.

    A pass reads the properties `calibration`, `sensitivities` and `code`, which are never None: a pass is not called
    without what it `needs`. `manifest` belongs to the bundle of the graph; None for a graph without a bundle.
    `executor` runs the tasks that a pass divides its work into, in this process by default; `finished` keeps the layers
    that a pass has finished, for `--resume`, by default none. The number of threads and the progress bars are set for
    the process: `intaglio.processes.threads`, `intaglio.display.progress`.
    """

    manifest: Manifest | None = None
    calibration_data: CalibrationData | None = None
    sensitivity_file: Sensitivities | None = None
    user_code: UserCode | None = None
    executor: Executor = INLINE
    finished: FinishedLayers = NOTHING_FINISHED

    @property
    def calibration(self) -> CalibrationData:
        """Real inputs to observe activations on."""
        return _present(self.calibration_data, Need.CALIBRATION)

    @property
    def sensitivities(self) -> Sensitivities:
        """Sensitivity of the loss to each weight."""
        return _present(self.sensitivity_file, Need.SENSITIVITY)

    @property
    def code(self) -> UserCode:
        """The user's functions that the recipe names."""
        return _present(self.user_code, Need.CODE)

    def check(self, graph_pass: Pass) -> None:
        """Raise `GraphError` if something is missing that the pass needs."""
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
        raise GraphError(f"a pass used {need.name.lower()} without declaring it. Add Need.{need.name} to its needs.")
    return given


@dataclass(frozen=True)
class Pass(ABC):
    """ONNX -> ONNX, in place."""

    name: ClassVar[str]
    shows_progress: ClassVar[bool] = False  # has its own progress bar, and can be interrupted between its steps
    uses_executor: ClassVar[bool] = False  # divides its work into tasks
    keeps_layers: ClassVar[bool] = False  # keeps finished layers, and goes on from them
    main_option: ClassVar[str | None] = None  # the option set by `name: value` in a recipe file

    @property
    @abstractmethod
    def effect(self) -> Effect:
        """How it changes the numbers: a class attribute, or a property if it depends on the options."""

    @property
    def needs(self) -> frozenset[Need]:
        """Its inputs besides the graph: a class attribute, or a property if they depend on the options."""
        return frozenset()

    def __post_init__(self) -> None:  # noqa: B027
        """Raise `GraphError` for options out of range; overriding methods call this one too."""

    def prepare(self, inputs: PassInputs) -> None:  # noqa: B027
        """Raise errors that can be detected before any pass of the recipe runs."""

    def __call__(self, model: ir.Model, inputs: PassInputs = PassInputs()) -> tuple[ir.Model, Counts]:
        """Rewrite `model`; return it with the counts. Raises `GraphError` if `inputs` lacks something it needs."""
        inputs.check(self)
        counts = Counts()
        with nullcontext() if self.shows_progress else step(self.name):
            other = self._rewrite(model, inputs, counts)
        return model if other is None else other, counts

    @abstractmethod
    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> ir.Model | None:
        """Rewrite `model` as the class documents, and count it; `inputs` has everything that the pass needs.

        The result is the model that takes its place, or None.
        """

    @property
    def compresses_weights(self) -> bool:
        """Whether it stores weights in fewer bits."""
        return self.effect in (Effect.WEIGHTS_8, Effect.WEIGHTS_4, Effect.WEIGHTS_3)
