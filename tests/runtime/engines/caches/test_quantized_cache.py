"""Caches of 8 and 4 bits: the same texts nearly, rows as by themselves, and what can't be so is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cache_graph import attended, graph, operator
from onnx import TensorProto

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.plugins import ort as kernels
from intaglio.plugins.quantize_cache.slots import slot_bytes
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.caches.cached_attention import attend_by_our_kernel
from intaglio.runtime.engines.caches.engine_caches import with_slots
from intaglio.runtime.engines.caches.quantized_cache import quantize_caches
from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.encoder_decoder import open_session
from intaglio.targets import TARGETS

pytestmark = pytest.mark.skipif(not can_put_in(TARGETS["ort-cpu"]), reason="no compiled kernels")

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16]]
ERROR = {8: 0.02, 4: 0.3}  # of the largest logit; the models are random, with large weights


def logits(bundle: Path, bits: int | None) -> list[np.ndarray]:
    """Of a prompt, after a rollback, of steps of several tokens, and of a row that was copied from another."""
    with DecoderSession.open(bundle, batch=len(TEXTS), cache_bits=bits) as session:
        found = [session.prefill(TEXTS)]
        session.rollback([4, 2, 3])
        found.append(session.step([[3, 4], [4, 5], [5, 6]]))
        session.copy(0, 1, 6)
        session.cache.resize(256)
        found.append(session.step([[3], [3], [4]]))
        assert bits is None or np.array_equal(found[-1][0], found[-1][1])
        return found


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("bits", [8, 4])
def test_logits_are_close_to_those_of_floats(
    family: str, bits: int, make_decoder: Callable[..., tuple[Path, Path]]
) -> None:
    bundle = make_decoder(family)[1]
    for found, expected in zip(logits(bundle, bits), logits(bundle, None), strict=True):
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        assert 0 < error < ERROR[bits]


@pytest.mark.parametrize("bits", [8, 4])
def test_stored_graph_has_the_same_logits(
    bits: int, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    bundle = make_decoder("llama")[1]
    shutil.copytree(bundle, tmp_path / "built")
    build(tmp_path / "built", "ort-cpu")
    for found, expected in zip(logits(tmp_path / "built", bits), logits(bundle, bits), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_caches_take_the_bytes_of_their_slots(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
    bundle = make_decoder("llama")[1]
    decoder = Bundle.open(bundle).manifest.decoder
    assert decoder is not None
    for bits, of_values in ((8, 8), (4, 4)):
        with DecoderSession.open(bundle, cache_bits=bits) as session:
            session.prefill([[5]])
            widths = {name: buffer.shape[-1] for name, buffer in session.cache.buffers.items()}
        assert widths["key_0"] == slot_bytes(decoder.head_dim, 8)
        assert widths["value_0"] == slot_bytes(decoder.head_dim, of_values)


@pytest.mark.parametrize("bits", [8, 4])
def test_slots_are_written_and_read_in_place_of_floats(bits: int) -> None:
    model = graph(scale=0.5)
    operator(model)
    del model.graph.node[2]
    quantize_caches(model, bits)
    onnx.checker.check_model(model)
    types = [node.op_type for node in model.graph.node]
    assert types == ["QuantizeCache", "TensorScatter", "QuantizeCache", "TensorScatter", "CachedAttention"]
    kinds = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
    for name, width in (("key", slot_bytes(8, 8)), ("value", slot_bytes(8, bits))):
        for each in (name, f"past_{name}"):
            assert kinds[each].elem_type == TensorProto.UINT8 and kinds[each].shape.dim[3].dim_value == width
    assert kinds["context"].elem_type == kinds["query"].elem_type == TensorProto.FLOAT


@pytest.mark.parametrize("option", [5, 32])
def test_other_numbers_of_bits_are_refused(option: int) -> None:
    with pytest.raises(UsageError, match=f"--cache-bits {option}: expected one of 8, 4"):
        quantize_caches(graph(scale=0.5), option)


def test_nodes_that_cannot_read_slots_are_refused_by_name() -> None:
    model = graph(scale=0.5)
    operator(model)
    with pytest.raises(UsageError, match=r"--cache-bits 8: past_key is read by the node .*Neg.*Leave out"):
        quantize_caches(model, 8)
    model = graph(scale=0.5, softcap=3.0)
    operator(model)
    del model.graph.node[2]
    with pytest.raises(UsageError, match=r"--cache-bits 8: past_key is read by the node .*\(Attention\)"):
        quantize_caches(model, 8)


def test_caches_of_other_types_are_refused() -> None:
    model = graph(scale=0.5, cache=TensorProto.DOUBLE)
    del model.graph.node[2:]
    with pytest.raises(UsageError, match=r"past_key is not float \[batch, heads, capacity, depth\]"):
        quantize_caches(model, 8)


def test_attention_to_what_is_not_written_is_refused() -> None:
    model = graph(scale=0.5)
    del model.graph.node[2]
    model.graph.node[-1].input[2] = "past_value"
    operator(model)
    del model.graph.node[1]
    with pytest.raises(UsageError, match="the graph does not write past_value"):
        quantize_caches(model, 8)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("bits", [8, 4])
def test_words_hold_the_same_bytes(bits: int, kind: int) -> None:
    for found, expected in zip(attended(bits, kind, True), attended(bits, kind, False), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bits", [8, 4])
def test_float16_is_cast_and_has_the_same_slots(bits: int) -> None:
    context, *caches = attended(bits, TensorProto.FLOAT16, False)
    exact, *others = attended(bits, TensorProto.FLOAT, False)
    np.testing.assert_allclose(context, exact, rtol=0, atol=0.02 * np.abs(exact).max())
    assert all(np.mean(found == expected) > 0.8 for found, expected in zip(caches, others, strict=True))


def test_decoder_of_float16_has_quantised_caches(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    export(str(make_decoder("llama")[0]), tmp_path / "half", dtype="float16", check=False)
    for found, expected in zip(logits(tmp_path / "half", 8), logits(tmp_path / "half", None), strict=True):
        assert 0 < float(np.abs(found - expected).max() / np.abs(expected).max()) < ERROR[8]


@pytest.mark.parametrize("bits", [8, 4])
def test_engines_have_the_inputs_and_outputs_of_the_graph(
    bits: int, make_decoder: Callable[..., tuple[Path, Path]]
) -> None:
    bundle = Bundle.open(make_decoder("gpt2")[1])
    model = onnx.load(bundle.model_path)
    attend_by_our_kernel(model)
    quantize_caches(model, bits, words=True)
    found = with_slots(bundle.graph(), bits)
    for specs, values in ((found.inputs, model.graph.input), (found.outputs, model.graph.output)):
        for spec, value in zip(specs, values, strict=True):
            kind = value.type.tensor_type
            assert spec.name == value.name
            assert spec.dtype == onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
            assert spec.shape == tuple(each.dim_param or each.dim_value for each in kind.shape.dim)
    assert with_slots(bundle.graph(), None) == bundle.graph()


def test_graph_without_caches_is_refused() -> None:
    model = graph(scale=0.5)
    del model.graph.node[:]
    with pytest.raises(UsageError, match="the graph writes no cache"):
        quantize_caches(model, 8)


def test_lengths_of_other_axes_may_be_read() -> None:
    model = graph(scale=0.5)
    operator(model)
    del model.graph.node[2]
    model.graph.node.append(onnx.helper.make_node("Shape", ["past_key"], ["lengths"], start=0, end=1))
    quantize_caches(model, 8)
    model = graph(scale=0.5)
    operator(model)
    del model.graph.node[2]
    model.graph.node.append(onnx.helper.make_node("Shape", ["past_key"], ["lengths"]))
    with pytest.raises(UsageError, match=r"past_key is read by the node .*\(Shape\)"):
        quantize_caches(model, 8)


def test_missing_kernels_are_named(
    make_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "library", lambda: None)
    with pytest.raises(UsageError, match=r"--cache-bits 8: needs compiled kernels.*Install g\+\+"):
        open_engine(make_decoder("llama")[1], cache_bits=8)


def test_encoder_decoders_are_refused(make_encoder_decoder: Callable[..., tuple[Path, Path]]) -> None:
    bundle = make_encoder_decoder("t5")[1]
    with pytest.raises(UsageError, match=r"--cache-bits 8: .* is an encoder-decoder"):
        open_session(Bundle.open(bundle), cache_bits=8)
