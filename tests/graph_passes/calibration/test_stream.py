"""Observing the graph in segments gives the values of running it completely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load, save
from intaglio.errors import GraphError
from intaglio.executors.executor import INLINE, Inline
from intaglio.graph_passes.calibration.data import CalibrationData
from intaglio.graph_passes.calibration.stream import Stream
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.group_layers import set_weight
from intaglio.graph_passes.weights.linear_layers import linear_layers
from intaglio.processes.threads import bounded
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.samples.sentences import sentences


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(sentences()[:12]))
    return path


def exposed(model: ir.Model, names: list[str], batches: list[dict[str, np.ndarray]], folder: Path) -> list[dict]:
    """The named values in each batch, from one run of the complete graph."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    outputs = list(model.graph.outputs)
    model.graph.outputs.extend(values[name] for name in dict.fromkeys(names) if values[name] not in outputs)
    save(model, folder / "whole.onnx")
    model.graph.outputs[:] = outputs
    with OnnxRuntimeEngine(folder / "whole.onnx", threads=1) as engine:
        return [engine.run(batch) for batch in batches]


@pytest.mark.parametrize("which", ["tiny_bundle", "tiny_decoder"])
def test_stream_yields_the_inputs_of_all_layers(
    which: str, text: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bundle = Bundle.open(request.getfixturevalue(which))
    batches, _ = CalibrationData.open(text, bundle).load(6, 4)
    model = load(bundle.model_path)
    with Stream(model, batches) as stream:
        levels = stream.levels(linear_layers(model, Counts(), tied=True))
        whole = exposed(model, [str(level[0].x.name) for level in levels], batches, tmp_path)
        assert len(levels) >= 8
        for level in levels:
            for batch, results, rows in zip(batches, whole, stream.rows(level[0].x), strict=True):
                expected = results[str(level[0].x.name)]
                mask = batch["attention_mask"]
                expected = expected[mask != 0] if mask.ndim == 2 else expected.reshape(-1, expected.shape[-1])
                np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-5)


def test_later_layers_use_the_changed_weights(tiny_decoder: Path, text: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_decoder)
    batches, _ = CalibrationData.open(text, bundle).load(2, 2)
    model = load(bundle.model_path)
    with Stream(model, batches) as stream:
        levels = stream.levels(linear_layers(model, Counts()))
        for level in levels[:-1]:
            list(stream.rows(level[0].x))
            for layer in level:
                set_weight(layer, np.round(layer.matrix(), 1))
        last = levels[-1][0].x
        (rows,) = stream.rows(last)
        (results,) = exposed(model, [str(last.name)], batches, tmp_path)
        np.testing.assert_allclose(rows, results[str(last.name)].reshape(rows.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [None, 0], ids=["where a batch runs", "in tasks of their own"])
@pytest.mark.parametrize("which", ["tiny_bundle", "tiny_decoder"])
def test_workers_add_the_products_of_this_process(
    which: str, most: int | None, text: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(request.getfixturevalue(which))
    batches, _ = CalibrationData.open(text, bundle).load(6, 4)
    if most is not None:
        monkeypatch.setattr("intaglio.graph_passes.calibration.stream.PRODUCTS", most)
    found = []
    for executor in (INLINE, Inline()):  # the second one is treated as workers are
        model = load(bundle.model_path)
        with bounded(1), Stream(model, batches, executor) as stream:
            levels = stream.levels(linear_layers(model, Counts(), tied=True))
            found.append([stream.second_moments(level[0].x, level[0].shape[1]) for level in levels])
            again = stream.second_moments(levels[-1][0].x, levels[-1][0].shape[1])  # what is known already
            np.testing.assert_array_equal(again, found[-1][-1])
    for expected, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_layer_late_in_the_graph_is_not_run_early(parse: Callable[..., ir.Model]) -> None:
    body = """(float[n, 32] x, float[n, 32] c) => (float[n, 32] y)
        { h = MatMul(x, a)  r = Relu(h)  k = MatMul(c, b)  y = Add(r, k) }"""
    weight = np.eye(32, dtype=np.float32)
    model = parse(body, {"a": weight, "b": weight})
    with Stream(model, [{"x": np.ones((3, 32), np.float32), "c": np.ones((3, 32), np.float32)}]) as stream:
        early, late = linear_layers(model, Counts())
        list(stream.rows(early.x))
        list(stream.rows(model.graph.node(1).outputs[0]))
        assert stream.has_run(early.node) and not stream.has_run(late.node)


def test_infinite_activation_is_named(parse: Callable[..., ir.Model]) -> None:
    body = "(float[n, 32] x) => (float[n, 32] y) { h = Exp(x)  y = MatMul(h, a) }"
    model = parse(body, {"a": np.eye(32, dtype=np.float32)})
    named = pytest.raises(GraphError, match="the activation 'h' is NaN or infinite")
    with Stream(model, [{"x": np.full((1, 32), 1000, np.float32)}]) as stream, named:
        list(stream.rows(model.graph.node(0).outputs[0]))


def test_infinite_activation_is_named_where_it_is_multiplied(parse: Callable[..., ir.Model]) -> None:
    body = "(float[n, 32] x) => (float[n, 32] y) { h = Exp(x)  y = MatMul(h, a) }"
    model = parse(body, {"a": np.eye(32, dtype=np.float32)})
    named = pytest.raises(GraphError, match="the activation 'h' is NaN or infinite")
    with Stream(model, [{"x": np.full((1, 32), 1000, np.float32)}], Inline()) as stream, named:
        stream.second_moments(model.graph.node(0).outputs[0], 32)


def test_temporary_value_files_are_removed(
    parse: Callable[..., ir.Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    body = "(float[n, 32] x) => (float[n, 32] y) { h = MatMul(x, a)  r = Relu(h)  y = MatMul(r, a) }"
    model = parse(body, {"a": np.eye(32, dtype=np.float32)})
    batches = [{"x": np.full((2, 32), index, np.float32)} for index in range(3)]
    with Stream(model, batches) as stream:
        relu = model.graph.node(1).outputs[0]
        assert [part[0, 0] for part in stream.rows(relu)] == [0, 1, 2]
        assert len(list(tmp_path.glob("intaglio-values-*/*"))) == len(batches)
        list(stream.rows(model.graph.node(2).outputs[0]))
        # values without later consumers are deleted
        assert len(list(tmp_path.glob("intaglio-values-*/*"))) == len(batches)
    assert not list(tmp_path.iterdir())
