"""Decoders that other tools exported: what is taken computes and writes the same, the rest says why it is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from covering import few
from foreign_decoders import DIM, KV_HEADS, Foreign, write_foreign
from tiny_decoders import END

from intaglio import compress, export, generate
from intaglio.bundle.bundle import Bundle, LayerCache
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError, UsageError
from intaglio.exporters.decoders import check as decoder_check
from intaglio.exporters.decoders.foreign import group_query, rewrite
from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.targets import TARGETS

PROMPTS = ["hello", "a longer text, for a batch"]
TOKENS = 24
CASES = {
    "packed": Foreign(),
    "in parts": Foreign(packed=False, interleaved=True),
    "part of a head": Foreign(rotated=16),
    "capped, with biases": Foreign(softcap=5.0, bias=True),
    "one window": Foreign(windows=(7, 7)),
    "a window in one layer": Foreign(windows=(5, None)),
    "4 bits": Foreign(bits=4),
    "4 bits, zero points": Foreign(bits=4, zero_points=True, windows=(None, None)),
    "8 bits, zero points, biases": Foreign(bits=8, zero_points=True, bias=True),
    "2 bits": Foreign(bits=2, zero_points=True),
    "wanted logits": Foreign(all_logits=True),
    "Attention": Foreign("attention"),
    "Attention, capped": Foreign("attention", softcap=5.0),
    "Attention, a window in one layer": Foreign("attention", windows=(None, 6)),
    "Attention, one window": Foreign("attention", windows=(6, 6), rotated=16),
    "products": Foreign("concat"),
    "products, capped, a window": Foreign("concat", softcap=5.0, windows=(6,)),
    "products, 4 bits": Foreign("concat", bits=4, interleaved=True),
    "opset 14": Foreign(bits=4, zero_points=True, windows=(7, None), opset=14),
    "opset 17, products": Foreign("concat", softcap=5.0, windows=(6,), opset=17),
}


def greedy(path: Path, text: str, made: Foreign) -> list[int]:
    """The likeliest tokens after `text`, by the graph as the other tool runs it."""
    model = onnx.load(path)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1  # in float32; 4 rounds activations to 8 bits
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = {value.name for value in session.get_inputs()}
    tokens = _ids(path, text)
    caches = {
        name: np.zeros((1, KV_HEADS, 0, DIM), np.float32) for name in wanted if name.startswith("past_key_values")
    }
    new, found = tokens, list[int]()
    for _ in range(TOKENS):
        total = len(tokens)
        feeds = {
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - len(new), total)[None],
            "num_logits_to_keep": np.array(1),
        }
        feeds = {name: array for name, array in feeds.items() if name in wanted} | caches
        results = dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))
        new = [int(results["logits"][0, -1].argmax())]
        if new == [END]:
            break
        tokens, found = tokens + new, found + new
        caches = {name: results[name.replace("past_key_values", "present")] for name in caches}
    return found


def _ids(path: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(path.parent / "tokenizer.json")).encode(text).ids
    return ids


FEW = ("opset 14", "a window in one layer", "products, capped, a window", "Attention, one window")


@pytest.mark.parametrize("name", few(CASES, FEW))
def test_text_and_logits_equal_the_original_graph(name: str, tmp_path: Path) -> None:
    made = CASES[name]
    path = write_foreign(tmp_path / "source", made)
    result = export(str(path), tmp_path / "bundle")
    assert result.passed, result
    assert result.notes == []
    written = [
        [token for token in each.tokens if token != END]
        for each in generate(tmp_path / "bundle", PROMPTS, max_new_tokens=TOKENS, batch=2)
    ]
    assert written == [greedy(path, text, made) for text in PROMPTS]
    operators = {node.op_type for node in load(tmp_path / "bundle" / "model.onnx").graph}
    assert {"Attention", "TensorScatter", "GatherND", "RMSNormalization"} <= operators
    assert ("GroupMatMul" in operators) == (made.bits > 0) and "MatMulNBits" not in operators


def test_manifest_has_what_the_files_say(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign(windows=(5, None)), bos_token_id=None)
    export(str(path), tmp_path / "bundle")
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.source.kind, manifest.task, manifest.dtype) == ("onnx", "generate", "float32")
    decoder = manifest.decoder
    assert decoder is not None
    assert (decoder.layers, decoder.heads, decoder.max_positions) == (2, 4, 64)
    assert (decoder.bos_token_id, decoder.eos_token_ids) == (None, (END,))
    assert decoder.caches == (LayerCache(KV_HEADS, DIM, DIM, 5), LayerCache(KV_HEADS, DIM, DIM))


@pytest.mark.skipif(not can_put_in(TARGETS["ort-cpu"]), reason="no compiled kernels")
def test_caches_are_read_by_our_kernel_also_quantised(tmp_path: Path) -> None:
    """The shapes of values in other tools' graphs are often unknown."""
    path = write_foreign(tmp_path / "source", Foreign(windows=(5, None)))
    export(str(path), tmp_path / "bundle")
    logits = {}
    for bits in (None, 8):
        with DecoderSession.open(tmp_path / "bundle", cache_bits=bits) as session:
            logits[bits] = session.prefill([[*range(5, 15)]])
    error = np.abs(logits[8] - logits[None]).max() / np.abs(logits[None]).max()
    assert 0 < error < 0.05


@pytest.mark.parametrize("attention", few(["group_query", "attention", "concat"], ["attention"]))
def test_half_precision_stays(attention: str, tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign(attention, bits=4, dtype=onnx.TensorProto.FLOAT16))
    assert export(str(path), tmp_path / "bundle").passed
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.dtype, manifest.outputs[0].dtype, manifest.inputs[-1].dtype) == ("float16", "float32", "float16")


def test_weights_in_floating_point_are_compressed(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign())
    export(str(path), tmp_path / "bundle")
    compress(tmp_path / "bundle", tmp_path / "small", recipe="rtn")
    (text,) = generate(tmp_path / "small", ["hello"], max_new_tokens=4)
    assert len(text.tokens) == 4


DAMAGE: dict[str, dict[str, Any]] = {
    "another scale": {"scale": 0.25},
    "a longer window": {"window": 8},
    "no cap": {"softcap": 0.0},
}


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in DAMAGE.items()])
def test_check_detects_a_wrong_reading(change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = group_query.site

    def wrong(node: Any, nodes: Any, positions: Any) -> Any:
        found = read(node, nodes, positions)
        return found and found._replace(**change)

    monkeypatch.setattr(rewrite, "SITES", (wrong,))
    path = write_foreign(tmp_path / "source", Foreign(softcap=5.0, windows=(7,)))
    assert export(str(path), tmp_path / "bundle").passed is False


def changed(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


def _norms(model: onnx.ModelProto) -> None:
    """Let the graph be valid as it is, too: ONNX's checker does not know this norm."""
    for node in model.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.op_type = "RMSNormalization"
            del node.attribute[:]


def _node(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == kind)


def _sinks(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "sinks"))
    node = _node(model, "GroupQueryAttention")
    node.input.extend(["", "", "sinks"])


def _extra_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("speed", onnx.TensorProto.INT64, []))
    model.graph.node.append(onnx.helper.make_node("Identity", ["speed"], ["speed_again"]))


def _old(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 12


def _slopes(model: onnx.ModelProto) -> None:
    """ALiBi: the mask counts the tokens between."""
    node = _node(model, "Attention")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(-0.1, np.float32), "slope"))
    places = list(model.graph.node).index(node)
    made = [
        onnx.helper.make_node("Shape", [node.input[3]], ["shape_of_mask"]),
        onnx.helper.make_node("Expand", ["slope", "shape_of_mask"], ["slopes"]),
        onnx.helper.make_node("Add", [node.input[3], "slopes"], ["sloped"]),
    ]
    node.input[3] = "sloped"
    for each in reversed(made):
        model.graph.node.insert(places, each)


REFUSED: dict[str, tuple[Foreign, Callable[[onnx.ModelProto], None], str]] = {
    "sinks": (Foreign(), _sinks, "its GroupQueryAttention has head_sink, which is not read"),
    "another input": (Foreign(), _extra_input, "it takes speed, which no step has"),
    "an old opset": (Foreign("concat"), _old, "its opset is 12, expected 13 or later"),
    "a mask with numbers": (Foreign("attention"), _slopes, "adds other numbers to the scores than a mask's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_decoder_that_is_not_understood_says_why(name: str, tmp_path: Path) -> None:
    made, change, reason = REFUSED[name]
    path = write_foreign(tmp_path / "source", made)
    changed(path, _norms if name == "sinks" else lambda model: None)
    changed(path, change)
    try:
        result = export(str(path), tmp_path / "bundle")
    except SourceError as error:
        assert reason in str(error) and "\n" not in str(error)
        assert not (tmp_path / "bundle").exists()
    else:
        assert len(result.notes) == 1 and reason in result.notes[0]
        assert Bundle.open(tmp_path / "bundle").manifest.decoder is None


def test_decoder_is_not_taken_without_its_check(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign())
    with pytest.raises(UsageError, match="--no-check: the graph of a decoder is rewritten"):
        export(str(path), tmp_path / "bundle", check=False)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"eos_token_id": "end"}, "a BOS or EOS id beside it is 'end', expected a number"),
        ({"eos_token_id": [256, 272]}, "a BOS or EOS id beside it is 272, of 272 tokens"),
        ({"bos_token_id": True}, "a BOS or EOS id beside it is True, expected a number"),
    ],
)
def test_invalid_settings_are_named(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign(), **settings)
    with pytest.raises(SourceError, match=re.escape(reason)):
        export(str(path), tmp_path / "bundle")


def test_decoder_without_tokenizer_says_so(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign())
    (path.parent / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"there is no tokenizer\.json beside it"):
        export(str(path), tmp_path / "bundle")


def test_unreadable_tokenizer_is_named_without_the_path_of_a_temporary_file(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "source", Foreign())
    (path.parent / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(
        SourceError, match=r"the file beside it is no tokenizer: tokenizer\.json: not a readable"
    ) as found:
        export(str(path), tmp_path / "bundle")
    assert "intaglio-tmp" not in str(found.value)


def test_window_that_the_check_cannot_cross_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_check, "PAST_BYTES", 3 * 4 * KV_HEADS * 2 * DIM)
    path = write_foreign(tmp_path / "source", Foreign(windows=(7,)))
    result = export(str(path), tmp_path / "bundle")
    assert result.notes == ["the check has caches of 3 tokens, so it does not cross the longest window = 7"]
