"""An engine like TensorRT's: no bound arrays, a cache of fixed length, and steps of few tokens."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle.bundle import Axis
from intaglio.runtime.engines.engine import Array, Engine


class FixedEngine(Engine):
    """Wraps an engine with a cache of `capacity` slots, steps of at most `tokens` tokens, and sources of `source`."""

    def __init__(self, engine: Engine, capacity: int, tokens: int, source: int | None = None):
        self.engine = engine
        self.inputs, self.outputs = self.engine.inputs, self.engine.outputs
        self.axes = {
            **self.engine.axes,
            "capacity": Axis(capacity, capacity),
            "tokens": Axis(1, tokens),
            "source": Axis(1, source),
        }

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if "write_start" in feeds:  # it is not an encoder
            end = feeds["write_start"] + feeds["input_ids"].shape[1]
            assert (end <= self.axes["capacity"].maximum).all()  # values beyond it would be written elsewhere
        return self.engine.run(feeds)

    def close(self) -> None:
        """Does nothing: the owner closes the other engine."""
