"""An engine as TensorRT's are: it binds no arrays, its cache has one length, and its steps take few tokens."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle import Axis
from intaglio.runtime.engine import Array, Engine


class FixedEngine(Engine):
    """Another engine with a cache of `capacity` slots and steps of at most `tokens` tokens."""

    def __init__(self, engine: Engine, capacity: int, tokens: int):
        self.engine = engine
        self.inputs, self.outputs = self.engine.inputs, self.engine.outputs
        self.axes = {**self.engine.axes, "capacity": Axis(capacity, capacity), "tokens": Axis(1, tokens)}

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        tokens = feeds["input_ids"].shape[1]
        capacity = self.axes["capacity"].maximum
        assert tokens <= self.axes["tokens"].maximum
        assert feeds["past_key_0"].shape[2] == capacity
        assert (feeds["write_start"] + tokens <= capacity).all()  # what lies beyond would be written elsewhere
        return self.engine.run(feeds)

    def close(self) -> None:
        """Nothing: the other engine is its owner's."""
