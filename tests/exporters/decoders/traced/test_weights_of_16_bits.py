"""Matrices that a checkpoint has in 16 bits, such as the head of a quantised one, have 16 bits in the bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from quantized_checkpoints import save_quantized
from tiny_decoders import save_decoder

from intaglio.bundle.model_file import load
from intaglio.exporters import export
from intaglio.runtime import build
from intaglio.runtime.sessions.decoder import DecoderSession

TOKENS = list(range(5, 45))
TYPES = {"bfloat16": ir.DataType.BFLOAT16, "float16": ir.DataType.FLOAT16, "float32": ir.DataType.FLOAT}


def with_floats_in(checkpoint: Path, dtype: str) -> None:
    """Round the matrices in floating point to `dtype`, and store them so; "float32": to bfloat16, stored in float32."""
    import torch
    from safetensors.torch import load_file, save_file

    (path,) = checkpoint.glob("*.safetensors")
    tensors = load_file(path)
    kept = {name: each for name, each in tensors.items() if each.dtype == torch.float32 and each.ndim == 2}
    assert kept
    stored = {name: each.to(getattr(torch, dtype)) for name, each in kept.items()}
    if dtype == "float32":
        stored = {name: each.to(torch.bfloat16).to(torch.float32) for name, each in kept.items()}
    save_file(tensors | stored, path)


def logits(bundle: Path) -> np.ndarray:
    with DecoderSession.open(bundle) as session:
        found: np.ndarray = session.prefill([TOKENS])[0]
        return found


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # the second has one table for embeddings and head
@pytest.mark.parametrize("dtype", TYPES)
def test_every_matrix_keeps_the_type_of_the_checkpoint(dtype: str, family: str, tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", family)
    with_floats_in(checkpoint, dtype)
    assert export(str(checkpoint), tmp_path / "bundle").passed
    weights = load(tmp_path / "bundle" / "model.onnx").graph.initializers.values()
    assert {
        each.dtype for each in weights if each.name.endswith(("weight", "transposed")) and len(each.shape) == 2
    } == {TYPES[dtype]}


def test_engine_for_a_cpu_keeps_16_bits(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "gpt2")
    with_floats_in(checkpoint, "bfloat16")
    export(str(checkpoint), tmp_path / "bundle")
    expected = logits(tmp_path / "bundle")
    build(tmp_path / "bundle", "ort-cpu")
    stored = load(tmp_path / "bundle" / "engines" / "ort-cpu.onnx").graph.initializers.values()
    assert {each.dtype for each in stored if len(each.shape) == 2} == {ir.DataType.BFLOAT16}
    np.testing.assert_allclose(logits(tmp_path / "bundle"), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", TYPES)
def test_head_and_embedding_keep_the_type_of_the_checkpoint(dtype: str, tmp_path: Path) -> None:
    checkpoint = save_quantized(tmp_path, "llama", "gptq")
    with_floats_in(checkpoint, dtype)
    assert export(checkpoint, tmp_path / "bundle").passed
    weights = load(tmp_path / "bundle" / "model.onnx").graph.initializers
    names = "lm_head.weight_transposed", "model.embed_tokens.weight"
    assert {weights[name].dtype for name in names} == {TYPES[dtype]}
    assert {each.dtype for name, each in weights.items() if name.endswith("norm.weight")} == {ir.DataType.FLOAT}


def test_logits_equal_those_of_the_same_numbers_in_float32(tmp_path: Path) -> None:
    found = []
    for dtype in ("bfloat16", "float32"):
        checkpoint = save_quantized(tmp_path / dtype, "llama", "gptq")
        with_floats_in(checkpoint, dtype)
        export(checkpoint, tmp_path / dtype / "bundle")
        found.append(logits(tmp_path / dtype / "bundle"))
    np.testing.assert_array_equal(*found)


def test_float16_bundle_has_float16_throughout(tmp_path: Path) -> None:
    checkpoint = save_quantized(tmp_path, "llama", "gptq")
    with_floats_in(checkpoint, "bfloat16")
    export(checkpoint, tmp_path / "bundle", dtype="float16")
    weights = load(tmp_path / "bundle" / "model.onnx").graph.initializers
    assert ir.DataType.BFLOAT16 not in {each.dtype for each in weights.values()}
