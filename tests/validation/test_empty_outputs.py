"""Outputs without elements: there is nothing to compare, and no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import intaglio
from intaglio.validation.measures.measures import Distributions, Embeddings, Labels, Measure, Scores, Vectorwise
from intaglio.validation.measures.transcript_measure import Transcripts

LENGTHS = {"output_lengths": np.zeros(0, np.int64)}
CASES: list[tuple[Measure, dict[str, Any], dict[str, float]]] = [
    (Vectorwise(), {"y": np.zeros((3, 0), np.float32)}, {"mean_cosine": 1.0, "min_cosine": 1.0}),
    (Vectorwise(), {"y": np.zeros((0, 3), np.float32)}, {"mean_cosine": 1.0, "min_cosine": 1.0}),
    (Embeddings("y"), {"y": np.zeros((3, 0), np.float32)}, dict.fromkeys(Embeddings.names, 1.0)),
    (Labels("softmax"), {"logits": np.zeros((3, 0), np.float32)}, {"label_agreement": 1.0}),
    (Scores(), {"logits": np.zeros((0, 1), np.float32)}, {"score_error": 0.0}),
    (Distributions(False), {"logits": np.zeros((0, 4, 0), np.float32)}, {"kl_divergence": 0.0, "same_top": 1.0}),
    (
        Transcripts(0),
        {"log_probs": np.zeros((0, 5), np.float32), **LENGTHS},
        {"token_errors": 0.0, "same_top": 1.0},
    ),
]


@pytest.mark.parametrize(("measure", "outputs", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_empty_outputs_do_not_differ(measure: Measure, outputs: dict[str, Any], expected: dict[str, float]) -> None:
    measure.add(measure.part({"x": np.zeros((3, 4), np.float32)}, outputs, outputs))
    assert measure.results == expected


def test_compressed_bundle_with_an_empty_output_is_validated(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("x", 64), ("y", 0), ("z", 64))
    ]
    indices = [helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("zero", 0), ("one", 1))]
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Slice", ["x", "zero", "zero", "one"], ["y"]),
        helper.make_node("MatMul", ["x", "w"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "empty", values[:1], values[1:], [*indices, weight])
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    intaglio.export(tmp_path / "model.onnx", tmp_path / "bundle")
    intaglio.compress(tmp_path / "bundle", tmp_path / "rtn", "rtn")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32))
    result = intaglio.validate(
        tmp_path / "rtn", against=tmp_path / "bundle", data=tmp_path / "x.npz", report=tmp_path / "report"
    )
    assert result.outputs["y"].max_abs == 0
