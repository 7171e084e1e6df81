"""Base of the passes that run the graph on calibration data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Need, Pass


@dataclass(frozen=True)
class ObservingPass(Pass):
    """Reads at most `samples` texts, rows of arrays, or chunks of a decoder's text; runs `batch` of them at a time."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CALIBRATION})
    shows_progress: ClassVar[bool] = True
    samples: int = 128
    batch: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.name, samples=self.samples, batch=self.batch)


def at_least_one(name: str, **options: int) -> None:
    """Raise `GraphError` for an option of the pass `name` that is below 1."""
    for option, value in options.items():
        if value < 1:
            raise GraphError(f"{name}: {option} {value}: expected at least 1.")
