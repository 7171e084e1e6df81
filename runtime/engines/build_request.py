"""The request to a target's builder, and the result of `build`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import MODEL, Bundle, EngineRecord
from intaglio.bundle.plan_record import DEFAULT_PLAN, PlanOptions
from intaglio.errors import UsageError
from intaglio.runtime.engines.profiles import Range


class Refused(msgspec.Struct):
    """A GPU for which no engine was built."""

    gpu: str
    reason: str  # one line: the node, the operator, the reason and the fix


class Built(msgspec.Struct):
    """The engines that `build` added to the bundle, and the GPUs for which it failed."""

    engines: list[EngineRecord]
    refused: list[Refused] = []


@dataclass(frozen=True)
class BuildRequest:
    """The request to a target's builder."""

    gpus: Sequence[str]  # names from the table of GPUs
    lengths: Mapping[str, Range]  # of symbolic axes
    force: bool  # replace existing engines
    plugins: bool = True  # of TensorRT for our operators; else their bodies in standard ones
    workspace: int | None = None  # the most MiB that a kernel of TensorRT uses for intermediate results
    plan: PlanOptions = DEFAULT_PLAN  # of TensorRT
    cache_bits: int | None = None  # of a decoder's cached keys and values, 8 or 4; None: as the graph has them

    def check_free(self, bundle: Bundle, names: Sequence[str]) -> None:
        """Raise `UsageError` if `bundle` already has engines with these file names, unless `force` is set."""
        present = [name for name in names if f"engines/{name}" in bundle.manifest.files]
        if present and not self.force:
            raise UsageError(f"bundle {bundle.path}: has {', '.join(present)} already. Add --force to build again.")


def engine_stem(name: str, graph: str) -> str:
    """The name of an engine's file without extension: `name` for model.onnx, else `name` and the graph's name."""
    return name if graph == MODEL else f"{name}-{Path(graph).stem}"
