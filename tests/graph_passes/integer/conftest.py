"""A small encoder layer as a float graph in ONNX text form, so that each test can vary a part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from observed import ATTENTION, DEPTH, HEADS, OUTPUT, WHERE, WIDTH, WORDS

Array = npt.NDArray[Any]


@pytest.fixture
def encoder(parse: Callable[..., ir.Model]) -> Callable[..., ir.Model]:
    """A function: changed parts of the graph text -> the encoder."""

    def make(attention: str = ATTENTION, mask: str = WHERE, output: str = OUTPUT, head: str = "z = Identity(y)") -> Any:
        random = np.random.default_rng(1)

        def weight(*shape: int) -> Array:
            return random.normal(size=shape).astype(np.float32) / np.sqrt(shape[0]).astype(np.float32)

        weights = {
            "words": random.normal(size=(WORDS, WIDTH)).astype(np.float32),
            **{name: weight(WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")},
            "wf": weight(WIDTH, 4 * WIDTH),
            "wd": weight(4 * WIDTH, WIDTH),
            "bq": weight(WIDTH),
            "bo": weight(WIDTH),
            "bf": weight(4 * WIDTH),
            "g": np.linspace(0.5, 1.5, WIDTH, dtype=np.float32),
            "b": np.linspace(-0.2, 0.3, WIDTH, dtype=np.float32),
            "half": np.float32(0.5),
            "zero": np.float32(0),
            "low": np.float32(-3e38),
            "one": np.float32(1),
            "split": np.array([0, 0, HEADS, DEPTH]),
            "join": np.array([0, 0, WIDTH]),
            "axes": np.array([1, 2]),
            "axis0": np.array([0]),
            "axis1": np.array([1]),
            "table": (3 * random.normal(size=(4, HEADS))).astype(np.float32),
            "zero64": np.int64(0),
            "one64": np.int64(1),
            "three64": np.int64(3),
        }
        text = (
            "(int64[batch, sequence] ids, int64[batch, sequence] m) => (float[batch, sequence, 8] z) {\n"
            "  x = Gather(words, ids) e = LayerNormalization(x, g, b)\n"
            f"{mask}{attention}{output}  {head}\n}}"
        )
        used = {name: array for name, array in weights.items() if f"{name})" in text or f"{name}," in text}
        return parse(text, used)

    return make


@pytest.fixture
def feeds() -> dict[str, Array]:
    """Three texts, the last two with padding."""
    random = np.random.default_rng(2)
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
    return {"ids": random.integers(0, WORDS, (3, 6)), "m": mask}
