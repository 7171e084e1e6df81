"""What `build` is asked for, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from intaglio.bundle import MODEL, Bundle, EngineRecord
from intaglio.errors import UsageError
from intaglio.runtime.engines.profiles import Range


class Refused(msgspec.Struct):
    """A GPU that no engine was built for."""

    gpu: str
    reason: str  # one line: the node, the operator, the reason and what to do


class Built(msgspec.Struct):
    """What `build` added to the bundle, and what it could not."""

    engines: list[EngineRecord]
    refused: list[Refused] = []


@dataclass(frozen=True)
class BuildRequest:
    """What a target's builder is asked for."""

    gpus: Sequence[str]  # names of the table of GPUs
    lengths: Mapping[str, Range]  # of symbolic axes
    force: bool  # replace what is there

    def check_free(self, bundle: Bundle, names: Sequence[str]) -> None:
        """Raise `UsageError` where `bundle` has engines of these file names, unless they are to be replaced."""
        present = [name for name in names if f"engines/{name}" in bundle.manifest.files]
        if present and not self.force:
            raise UsageError(f"bundle {bundle.path}: has {', '.join(present)} already. Add --force to build again.")


def engine_stem(name: str, graph: str) -> str:
    """The name of an engine's file, without its ending: `name` for model.onnx, and that of another graph after it."""
    return name if graph == MODEL else f"{name}-{Path(graph).stem}"
