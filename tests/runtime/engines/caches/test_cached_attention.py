"""Decoders on a CPU attend by our kernel; graphs that it does not fit stay unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cache_graph import graph, operator
from onnx import TensorProto

from intaglio.bundle.bundle import Bundle
from intaglio.plugins import ort as kernels
from intaglio.runtime.engines.caches.cached_attention import attend_by_our_kernel
from intaglio.runtime.engines.onnxruntime import engine as engine_module
from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.targets import TARGETS

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16]]


def logits(bundle: Path) -> list[np.ndarray]:
    """Of rows of different lengths: of a prompt, after a rollback of one row, and of a step."""
    with DecoderSession.open(bundle, batch=len(TEXTS)) as session:
        found = [session.prefill(TEXTS)]
        session.rollback([4, 2, 3])
        return [*found, session.step([[3], [4], [5]])]


def test_logits_equal_those_of_the_standard_operator(
    make_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_put_in(TARGETS["ort-cpu"]):
        pytest.skip("no compiled kernels")
    bundle = make_decoder("llama")[1]
    replaced = []
    monkeypatch.setattr(
        engine_module,
        "attend_by_our_kernel",
        lambda model: replaced.append(model) or attend_by_our_kernel(model),
    )
    ours = logits(bundle)
    nodes = [node.op_type for node in replaced[0].graph.node]
    manifest = Bundle.open(bundle).manifest
    assert manifest.decoder is not None
    assert nodes.count("CachedAttention") == manifest.decoder.layers and "Attention" not in nodes
    monkeypatch.setattr(engine_module, "can_put_in", lambda target: False)
    for found, expected in zip(ours, logits(bundle), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_bundle_of_links_opens(make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    """As a snapshot of the hub's cache: each file is a link to one of another name in another folder."""
    bundle = make_decoder("llama")[1]
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for number, file in enumerate(path for path in bundle.iterdir() if path.is_file()):
        shutil.copy(file, tmp_path / "blobs" / str(number))
        (tmp_path / "snapshot" / file.name).symlink_to(tmp_path / "blobs" / str(number))
    for found, expected in zip(logits(tmp_path / "snapshot"), logits(bundle), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_attention_to_a_buffer_is_replaced() -> None:
    model = graph(scale=0.5)
    assert operator(model) == "CachedAttention"
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 24, "intaglio": 1}
    assert operator(graph(scale=0.5, key="past_key")) == "CachedAttention"


def test_graph_that_onnx_runtime_stored_is_changed_alike() -> None:
    """It states every attribute of the operator's opset."""
    model = graph(scale=0.5, softcap=0.0, is_causal=0, qk_matmul_output_mode=0)
    assert operator(model) == "CachedAttention"
    assert [each.name for each in model.graph.node[-1].attribute] == ["scale"]


@pytest.mark.parametrize(
    "model",
    [
        graph(scale=0.5, key="computed"),  # no buffer of a cache
        graph(scale=0.5, mask=TensorProto.FLOAT),
        graph(scale=0.5, cache=TensorProto.FLOAT16),
        graph(scale=0.5, softcap=20.0),
        graph(),  # a scale by the width of the heads
        graph(scale=0.5, is_causal=1),
    ],
    ids=["computed keys", "added mask", "float16", "cap", "default scale", "causal"],
)
def test_other_attention_stays(model: onnx.ModelProto) -> None:
    assert operator(model) == "Attention"
    assert [opset.domain for opset in model.opset_import] == [""]


def test_gpus_and_a_missing_library_keep_the_standard_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_put_in(TARGETS["ort-cuda"])
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert not can_put_in(TARGETS["ort-cpu"])
