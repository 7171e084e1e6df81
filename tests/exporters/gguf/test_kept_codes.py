"""Codes of a GGUF file that several nodes use are in the bundle once, and written once: those of a tied head, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from gguf_files import options, write_gguf
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.gguf.container import read_container
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.exporters.decoders.traced.grouped import keep_codes
from intaglio.graph_passes.weight_share import weight_share
from intaglio.plugins.group_matmul.look_up import codes_looked_up


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose head is its embedding. Read-only."""
    folder = tmp_path_factory.mktemp("tied")
    checkpoint = save_family(folder / "float", "llama", **options("llama"), tie_word_embeddings=True)
    return write_gguf(checkpoint, folder / "model.gguf", "llama", {"token_embd": "Q5_1", "attn": "Q4_1"})


def test_tied_head_multiplies_by_the_codes_that_are_looked_up(tied: Path, tmp_path: Path) -> None:
    assert export(str(tied), tmp_path / "bundle").passed
    model = load(Bundle.open(tmp_path / "bundle").model_path)
    (table,) = (node.inputs[0] for node in model.graph if codes_looked_up(node) == (5, 64))
    heads = [node for node in model.graph if node.op_type == "GroupMatMul" and node.inputs[1] is table]
    assert len(heads) == 1 and "lm_head.weight.packed" not in model.graph.initializers
    share = weight_share(model)
    assert share.tables == 0 and share.layers == table.shape[0] * 64 + 6 * 64**2  # keys and values: half of a square
    export(tmp_path / "bundle", tmp_path / "again.gguf", format="gguf", check=False)
    first, again = (read_container(path).tensors for path in (tied, tmp_path / "again.gguf"))
    assert first.keys() == again.keys()
    for name in ("token_embd.weight", "blk.0.attn_q.weight"):
        assert first[name].type == again[name].type
        np.testing.assert_array_equal(first[name].rows(), again[name].rows())


def test_quantised_weight_may_be_used_several_times(tied: Path) -> None:
    weights = Checkpoint.open(str(tied)).parameters()
    for name, shape in (("model.layers.0.self_attn.q_proj.weight", None), ("model.embed_tokens.weight", [2, 3])):
        weight = weights[name]
        assert isinstance(weight, GroupedWeight) and weight.has_minimums
        stored = weight.shape[::-1] if shape is None else weight.shape
        value = ir.Value(name=name, shape=ir.Shape(stored), type=ir.TensorType(ir.DataType.FLOAT))
        value.const_value = ir.tensor(np.zeros(stored, np.float32), name=name)
        dtype = ir.DataType.FLOAT if shape is None else ir.DataType.INT64
        x = ir.Value(name="x", shape=ir.Shape(shape or [2, 3, stored[0]]), type=ir.TensorType(dtype))
        nodes = [ir.node("MatMul", [x, value]) if shape is None else ir.node("Gather", [value, x]) for _ in range(2)]
        for index, node in enumerate(nodes):
            node.outputs[0].name, node.outputs[0].shape = f"y{index}", ir.Shape([2, 3, stored[-1]])
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        outputs = [node.outputs[0] for node in nodes]
        graph = ir.Graph([x], outputs, nodes=nodes, initializers=[value], opset_imports={"": 23}, name="twice")
        keep_codes(ir.Model(graph, ir_version=10), {value: weight})
        assert [output.name for output in graph.outputs] == ["y0", "y1"]
        tables = [node.inputs[0] for node in graph if codes_looked_up(node)]
        tables += [node.inputs[1] for node in graph if node.op_type == "GroupMatMul"]
        assert len(tables) == 2 and tables[0] is tables[1]
