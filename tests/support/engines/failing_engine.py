"""An engine that fails on purpose."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.runtime.engines.engine import Array, Engine


class Failing(Engine):
    """An engine that fails once, after some runs."""

    def __init__(self, engine: Engine, runs: int):
        self.engine, self.runs = engine, runs
        self.inputs, self.outputs, self.axes = engine.inputs, engine.outputs, engine.axes

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.runs -= 1
        if self.runs == 0:
            raise RuntimeError("the device\nis lost")
        return self.engine.run(feeds)

    def close(self) -> None:
        """Does nothing: the owner closes the other engine."""
