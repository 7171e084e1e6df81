"""Finding the first layer that exceeds its bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.accuracy.default_bounds import BOUNDS
from intaglio.bundle.bundle import Bundle
from intaglio.validation.comparison.bisect import PROBES, blocks, evenly_spaced, first_beyond, is_beyond, measure_layers
from intaglio.validation.comparison.compare import Difference
from intaglio.validation.comparison.compared_models import ComparedModel

BOUND = BOUNDS["float32"]
SMALL, LARGE = Difference(max_abs=1e-9, largest=1.0), Difference(max_abs=1.0, largest=1.0)


class Layers:
    """Layers that are within their bound (True), exceed it (False) or are not comparable (None), and the probes."""

    def __init__(self, within: Sequence[bool | None]):
        self.within = {f"layer {index}": state for index, state in enumerate(within)}
        self.names = list(self.within)
        self.asked: list[list[str]] = []

    def measure(self, names: Sequence[str]) -> dict[str, Difference]:
        assert len(names) <= PROBES
        self.asked.append(list(names))
        states = {name: self.within[name] for name in names}
        return {name: SMALL if state else LARGE for name, state in states.items() if state is not None}

    def measured(self) -> set[str]:
        return {name for names in self.asked for name in names}


@given(st.integers(1, 500), st.data())
def test_persistent_error_is_found_in_a_few_rounds(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, count - 1))
    layers = Layers([index < first for index in range(count)])
    found = first_beyond(layers.names, layers.measure, BOUND)
    assert found == (f"layer {first}", LARGE)
    assert len(layers.asked) <= math.ceil(math.log(count + 1, PROBES)) + 1


@given(st.lists(st.sampled_from([True, False, None]), max_size=80))
def test_found_layer_exceeds_the_bound_and_its_predecessor_does_not(within: list[bool | None]) -> None:
    layers = Layers(within)
    found = first_beyond(layers.names, layers.measure, BOUND)
    if False not in within:
        assert found is None
        assert layers.measured() == set(layers.names)  # every conclusion was probed
        return
    assert found is not None
    name, _ = found
    assert layers.within[name] is False
    before = [other for other in layers.names[: layers.names.index(name)] if layers.within[other] is not None]
    if before:
        assert layers.within[before[-1]] is True
        assert before[-1] in layers.measured()


def test_no_layers_find_nothing() -> None:
    assert first_beyond([], Layers([]).measure, BOUND) is None


@given(st.lists(st.integers(), min_size=1, max_size=100, unique=True), st.integers(1, 8))
def test_probes_are_distinct_ordered_and_include_the_last(names: list[int], count: int) -> None:
    probes = evenly_spaced([str(name) for name in names], count)
    assert probes == [str(name) for name in names if str(name) in probes]
    assert len(set(probes)) == min(count, len(names))
    assert probes[-1] == str(names[-1])


def test_layer_with_nan_exceeds_the_bound() -> None:
    assert is_beyond(Difference(nans=1), BOUND)
    assert is_beyond(Difference(max_abs=math.inf, largest=1.0), BOUND)
    assert not is_beyond(SMALL, BOUND)


def test_only_block_outputs_are_compared() -> None:
    layers = {
        "embeddings.word": "a",
        "embeddings": "b",
        "encoder.layer.0.attention.self": "c",
        "encoder.layer.0": "d",
        "model": "e",
        "encoder.layer.1": "e",
        "pooler": "f",
    }
    shown = {"a": "embeddings.word", "b": "embeddings", "d": "encoder.layer.0", "e": "encoder.layer.1", "f": "pooler"}
    assert blocks(layers) == shown


@settings(max_examples=examples(12))
@given(st.integers(1, 14), st.data())
def test_planted_error_is_found_in_a_graph(
    chain: Callable[..., onnx.ModelProto],
    make_bundle: Callable[..., Path],
    rows: npt.NDArray[np.float32],
    layers: int,
    data: st.DataObject,
) -> None:
    planted = data.draw(st.integers(0, layers - 1), label="planted")
    compensated = data.draw(st.none() | st.integers(planted + 1, layers), label="compensated")
    faulty = make_bundle(chain(layers, planted, compensated))
    found = search(faulty, make_bundle(chain(layers)), rows)
    assert found is not None
    assert found[0] == f"layer_{planted}"
    assert found[1].max_abs == pytest.approx(0.1, rel=1e-4)


def test_correct_graph_finds_nothing(
    chain: Callable[..., onnx.ModelProto], make_bundle: Callable[..., Path], rows: npt.NDArray[np.float32]
) -> None:
    assert search(make_bundle(chain(3)), make_bundle(chain(3)), rows) is None


def search(actual: Path, expected: Path, rows: npt.NDArray[np.float32]) -> tuple[str, Difference] | None:
    sides = (
        ComparedModel(Bundle.open(actual), "ort-cpu", "actual"),
        ComparedModel(Bundle.open(expected), "ort-cpu", "expected"),
    )
    feeds = [{"x": rows}]
    return first_beyond(sides[0].values(), lambda names: measure_layers(*sides, names, feeds, BOUND), BOUND)
