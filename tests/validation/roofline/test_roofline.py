"""The roofline: bytes and operations against counts by hand, plausible limits, and a valid SVG plot."""

import json
import os
from xml.etree import ElementTree

import numpy as np
import onnx_ir as ir
import pytest
from operator_cases import Case, longest

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import UsageError
from intaglio.graph_passes import compress
from intaglio.plugins import OPS, ort
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.native.memory_bandwidth import Memory
from intaglio.validation.roofline.cpu_cache import last_level_bytes
from intaglio.validation.roofline.picture import picture
from intaglio.validation.roofline.roofline import Roofline, RooflinePoint, roofline
from intaglio.validation.roofline.work import work

pytestmark = pytest.mark.skipif(not ort.library(), reason="no compiled kernels")


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch):
    """The tests are of what is measured and shown; how exact the times are does not matter to them."""
    for name, value in {"SECONDS": 0.01, "REPEATS": 3, "SIDE": 256, "Memory": lambda: Memory(1 << 25)}.items():
        monkeypatch.setattr(f"intaglio.validation.roofline.roofline.{name}", value)


def test_work_of_a_decoder_counts_its_matrices_and_cache(tiny_decoder):
    bundle = Bundle.open(tiny_decoder)
    decoder = bundle.manifest.decoder
    model = load(bundle.model_path)
    tokens, capacity = 3, 128
    found = work(model, {"batch": 1, "tokens": tokens, "capacity": capacity, "positions_wanted": 1})
    matrices = [
        node.inputs[1].const_value.size
        for node in model.graph
        if node.op_type == "MatMul" and node.inputs[1].const_value is not None
    ]
    head = decoder.vocab_size * decoder.heads * decoder.head_dim
    attention = 4 * decoder.heads * decoder.head_dim * tokens * capacity * decoder.layers
    layers = sum(matrices) - (head if head in matrices else 0)
    assert found.operations == 2 * tokens * layers + 2 * head + attention
    assert found.cache_bytes == 2 * decoder.layers * decoder.kv_heads * capacity * decoder.head_dim * 4
    stored = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    assert 0.5 * stored < found.weight_bytes <= stored


def test_packed_weights_count_their_stored_bytes(tiny_decoder, tmp_path):
    recipe = tmp_path / "lut.yaml"
    recipe.write_text("passes: [{lut: {bits: 4, unweighted: true, compensate: false}}]")
    compress(tiny_decoder, tmp_path / "lut", recipe)
    axes = {"batch": 1, "tokens": 1, "capacity": 128, "positions_wanted": 1}
    before, after = (work(load(Bundle.open(path).model_path), axes) for path in (tiny_decoder, tmp_path / "lut"))
    assert after.operations == before.operations
    assert after.weight_bytes < before.weight_bytes


@pytest.mark.parametrize("packed", [0, 1])
def test_fused_and_separate_projections_count_the_same(packed):
    query, keys = (np.zeros((2, length, 64 * (3 if packed else 1)), np.int8) for length in (5, 7))
    one = np.ones(1, np.int32)
    attributes = {"num_heads": 4, "scale": 0.1, "packed": packed}
    case = Case("IntAttention", (query, keys, keys, one, one), attributes)
    assert work(node_model(case), {}).operations == 2 * (2 * 5 * 7 * 64) * 2


COUNTS = {
    "IntLinear": 2 * 3 * 4096 * 5,
    "IntMatMul": 2 * 3 * 4096 * 5,
    "LutMatMul": 2 * 2 * 4096 * 37,
    "GroupMatMul": 2 * 2 * 4096 * 37,
    "CsrMatMul": 2 * 3 * 2048,
    "IntAttention": 4 * 3 * 4096 * 32,
    "CachedAttention": 4 * 2 * 3 * 4096 * 32,
    "LowRankMatMul": 4 * 2 * 3 * 5 * 4096,
    "PackedMatMul": 2 * 9 * 4096 * 70,
}


@pytest.mark.parametrize("operator", OPS)
def test_operations_of_custom_operators_equal_their_products(operator):
    assert work(node_model(longest(operator)), {}).operations == COUNTS.get(operator, 0)


def test_unknown_shape_counts_nothing():
    x = ir.Value(name="x", shape=ir.Shape(["batch", 4]), type=ir.TensorType(ir.DataType.FLOAT))
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros((4, 5), np.float32), name="w"))
    node = ir.Node("", "MatMul", [x, weight])
    node.outputs[0].shape = ir.Shape(["batch", 5])
    model = ir.Model(ir.Graph([x], node.outputs, nodes=[node], initializers=[weight]), ir_version=10)
    assert work(model, {}).operations == 0
    assert work(model, {"batch": 3}).operations == 2 * 3 * 4 * 5
    assert work(model, {}).bytes == 4 * 4 * 5


def test_predicted_and_measured_times_are_positive(tiny_decoder):
    found = roofline(tiny_decoder, tokens=[1, 2], lengths=[8], threads=1)
    assert [(row.tokens, row.length) for row in found.rows] == [(1, 8), (2, 8)]
    assert found.bandwidth > 1e8 and found.peak > 1e8
    for row in found.rows:
        assert row.predicted_ms > 0 and row.measured_ms > 0
        limit = max(row.bytes / found.bandwidth, row.operations / found.peak)
        assert row.predicted_ms == pytest.approx(1e3 * limit)
        assert row.ratio == pytest.approx(row.predicted_ms / row.measured_ms)
        assert row.above_memory == (row.measured_ms / 1e3 < row.bytes / found.bandwidth)
    drawn = ElementTree.fromstring(picture(found))  # noqa: S314
    assert sum(1 for each in drawn.iter() if each.tag.endswith("circle")) == 3  # two rows and the legend


def test_encoder_has_a_roofline(tiny_bundle, intaglio):
    code, printed, errors = intaglio("roofline", tiny_bundle, "--length", "8", "--threads", "1", "--json")
    assert code == 0, errors
    (row,) = json.loads(printed)["rows"]
    assert row["tokens"] == row["length"] == 8 and row["operations"] > 0


def test_invalid_lengths_are_refused(tiny_decoder):
    with pytest.raises(UsageError, match="at least 1"):
        roofline(tiny_decoder, tokens=[0], lengths=[8])


def row(tokens, size, above):
    return RooflinePoint(
        tokens, 128, size, 2 * size, 2.0, "memory", 1.0, 0.4 if above else 2.0, 2.5 if above else 0.5, above
    )


def found(cache, *rows):
    return Roofline("gpt2", 2, 1e10, 1e11, cache, list(rows))


def test_point_above_the_roof_is_explained_by_the_cache(monkeypatch, intaglio):
    result = found(32 << 20, row(1, 5_000_000, True), row(8, 6_000_000, False))
    monkeypatch.setattr("intaglio.validation.roofline.roofline.roofline", lambda **_: result)
    code, printed, errors = intaglio("roofline", "gpt2")
    assert (code, errors) == (0, "")
    (note,) = [line for line in printed.splitlines() if line.startswith("Faster than memory allows")]
    assert "1 token at length 128 (5.0 MB)" in note and "8 tokens" not in note
    assert note.endswith("stays in the last-level cache of 33.6 MB.")
    assert printed.count("memory, from cache") == 1
    drawn = picture(result)
    assert drawn.count("0.40 ms, from the cache") == 1 and drawn.count("from the cache") == 2


@pytest.mark.parametrize(
    ("cache", "expected"),
    [(1 << 20, "A part stays in the last-level cache of 1.0 MB, or other"), (None, "stays in the last-level cache.")],
)
def test_data_larger_than_the_cache_is_not_attributed_to_it(cache, expected, monkeypatch, intaglio):
    monkeypatch.setattr(
        "intaglio.validation.roofline.roofline.roofline", lambda **_: found(cache, row(1, 5_000_000, True))
    )
    assert expected in intaglio("roofline", "gpt2")[1]


def test_point_below_the_roof_has_no_explanation(monkeypatch, intaglio):
    result = found(32 << 20, row(1, 5_000_000, False))
    monkeypatch.setattr("intaglio.validation.roofline.roofline.roofline", lambda **_: result)
    assert "cache" not in intaglio("roofline", "gpt2")[1] and "cache" not in picture(result)


def test_shared_last_level_cache_is_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    for cpu, level, shared, size in (
        (0, 2, "0", "1024K"), (1, 2, "1", "1024K"), (0, 3, "0-1", "32M"), (1, 3, "0-1", "32M"), (2, 3, "2-3", "32768K"),
    ):  # fmt: skip
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("shared_cpu_list", shared), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert last_level_bytes(tmp_path) == 64 << 20
    assert last_level_bytes(tmp_path / "none") is None
    monkeypatch.undo()
    here = last_level_bytes()
    assert here is None or here > 100_000


def test_existing_plot_is_kept_without_force(tiny_decoder, tmp_path, intaglio):
    path = tmp_path / "roofline.svg"
    path.write_text("mine")
    arguments = ("roofline", tiny_decoder, "--tokens", "1", "--length", "8", "--threads", "1", "--picture", path)
    code, printed, errors = intaglio(*arguments)
    assert (code, printed) == (2, "")
    assert errors == f"intaglio: --picture {path}: exists already. Add --force to replace it, or choose another path.\n"
    assert path.read_text() == "mine"
    assert intaglio(*arguments, "--force")[0] == 0
    assert path.read_text().startswith("<svg")
