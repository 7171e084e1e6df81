"""Quantised weights multiply activations of 16 bits, or of 32 on request, whose logits match a float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf_files import options, write_gguf
from quantized_checkpoints import save_quantized
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference.source_model import build_model
from intaglio.networks.blocks import blocks_path
from intaglio.runtime.sessions.decoder import DecoderSession

TOKENS = list(range(5, 45))
BLOCKS = {"Q4_1": "Q5_0", "Q8_0": "Q4_0", "Q5_1": "IQ4_NL"}  # of attention, and of the feed-forward beside it


def checkpoint_of(kind: str, model_type: str, folder: Path) -> Path:
    """A checkpoint whose linear layers are quantised; `kind`: a method, or a type of GGUF's blocks."""
    if kind not in BLOCKS:
        return save_quantized(folder, model_type, kind, symmetric=kind != "awq")
    checkpoint = save_family(folder / "float", model_type, **options(model_type))
    return write_gguf(checkpoint, folder / "model.gguf", model_type, {"attn": kind, "ffn": BLOCKS[kind]})


def logits(bundle: Path) -> npt.NDArray[np.float32]:
    """Of the last of the tokens, as `generate` computes them: of all in one pass, and one by one."""
    with DecoderSession.open(bundle) as session:
        whole = session.prefill([TOKENS])[0]
        session.rollback(0)
        session.prefill([TOKENS[:8]])
        for token in TOKENS[8:]:
            last = session.step([[token]])[0, 0]
    np.testing.assert_array_equal(last, whole)
    return whole


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed-tensors", *BLOCKS])
def test_logits_with_32_bits_match_the_decoded_weights(kind: str, model_type: str, tmp_path: Path) -> None:
    import torch

    path = checkpoint_of(kind, model_type, tmp_path)
    opened = Checkpoint.open(str(path), check=find_kind)
    model = build_model(opened, opened.parameters(), opened.config["architectures"][0], blocks_path).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0, -1].numpy()
    largest = np.abs(expected).max()
    for bits, bound in ((8, 0.1 * largest), (16, 1e-3 * largest), (32, 1e-4)):
        bundle = tmp_path / f"bundle-{bits}"
        assert export(path, bundle, activation_bits=bits).passed
        products = [node for node in load(Bundle.open(bundle).model_path).graph if node.op_type == "GroupMatMul"]
        assert products and all(node.attributes.get_int("activation_bits") == bits for node in products)
        np.testing.assert_allclose(logits(bundle), expected, rtol=0, atol=bound)


def test_activation_bits_are_refused_where_nothing_has_them(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no quantised weights"):
        export(tiny_checkpoint, tmp_path / "bundle", activation_bits=32)
    with pytest.raises(UsageError, match="activation_bits 4: expected one of 8, 16, 32"):
        export(tiny_checkpoint, tmp_path / "bundle", activation_bits=4)
    with pytest.raises(UsageError, match="is for a checkpoint with quantised weights"):
        export(tmp_path / "model.onnx", tmp_path / "bundle", activation_bits=32)
    assert not (tmp_path / "bundle").exists()
