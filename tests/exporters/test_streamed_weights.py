"""The check of a large export holds one layer's weights in memory at a time and gives the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import FAMILIES, save_decoder
from tiny_encoder_decoders import save_encoder_decoder

from intaglio.bundle.bundle import Bundle
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.exporters.decoders.reference import source_model
from intaglio.exporters.encoder_decoders.check import Pair, outputs_of
from intaglio.exporters.files.computed_tensor import ComputedTensor
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference import check, streamed_weights
from intaglio.exporters.reference.source_model import build_model
from intaglio.runtime.engines.onnxruntime.layered_engine import LayeredEngine

IDS = [5, 9, 77, 3, 200]
TEXTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6]]


def in_bfloat16(folder: Path) -> None:
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.covering(1)
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_weights_give_the_same_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, stored: str
) -> None:
    folder = save_decoder(tmp_path / family, family)
    if stored == "bfloat16":
        in_bfloat16(folder)
    checkpoint = Checkpoint.open(str(folder))
    _, found = find_kind(checkpoint.config, str(folder))
    monkeypatch.setattr(streamed_weights, "READ_ABOVE", 1000)
    monkeypatch.setattr(streamed_weights, "CHUNK", 1000)
    with torch.inference_mode():
        ids = torch.tensor([IDS])
        expected = source_model(checkpoint, found.architecture)(input_ids=ids).logits
        module = source_model(checkpoint, found.architecture, streamed=True)
        for _ in range(2):
            assert torch.equal(module(input_ids=ids).logits, expected)
    numbers = {each.untyped_storage().nbytes() // 4 for each in module.parameters() if each.numel() > 250}
    assert numbers == {len([each for each in checkpoint.tensors().values() if each.tensor.numel() > 250])}


def test_streamed_weights_of_t5_give_the_same_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.open(str(save_encoder_decoder(tmp_path / "t5", "t5")))
    monkeypatch.setattr(streamed_weights, "READ_ABOVE", 1000)
    ids = torch.tensor([IDS])
    with torch.inference_mode():
        plain, streamed = (
            build_model(checkpoint, checkpoint.tensors(), "T5ForConditionalGeneration", "block", each).eval()
            for each in (False, True)
        )
        expected = plain(input_ids=ids, decoder_input_ids=ids).logits
        assert torch.equal(streamed(input_ids=ids, decoder_input_ids=ids).logits, expected)


@pytest.fixture
def cut_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "WHOLE_UP_TO", 0)


def test_decoder_split_at_its_blocks_gives_the_same_outputs(
    cut_anyway: None, make_decoder: Callable[..., tuple[Path, Path]]
) -> None:
    bundle = Bundle.open(make_decoder("llama")[1])
    assert bundle.manifest.decoder is not None
    cuts = check.block_outputs(bundle.manifest.layers, ["model.layers"])
    assert len(cuts) == bundle.manifest.decoder.layers
    whole = stepwise_outputs(bundle.model_path, bundle.manifest.decoder, TEXTS)["logits"]
    with check.open_checked(bundle.model_path, cuts) as engine:
        assert isinstance(engine, LayeredEngine) and len(engine._parts) == len(cuts) + 1
    found = stepwise_outputs(bundle.model_path, bundle.manifest.decoder, TEXTS, cuts)["logits"]
    for mine, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_encoder_decoder_split_at_its_blocks_gives_the_same_outputs(
    cut_anyway: None, make_encoder_decoder: Callable[..., tuple[Path, Path]]
) -> None:
    bundle = Bundle.open(make_encoder_decoder("t5")[1])
    decoder, encoder = bundle.manifest.decoder, bundle.manifest.encoder
    assert decoder is not None and encoder is not None
    pairs = [Pair([5, 6, 7, 8], [0, 3, 4]), Pair([9, 10], [0, 11, 12, 13])]
    cuts = check.block_outputs({**encoder.layers, **bundle.manifest.layers}, ["encoder.block", "decoder.block"])
    assert len(cuts) == 5
    expected = outputs_of(bundle.path, decoder, encoder, pairs)
    for name, found in outputs_of(bundle.path, decoder, encoder, pairs, cuts).items():
        for mine, theirs in zip(found, expected[name], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * float(np.abs(theirs).max()))


def test_computed_weights_are_kept_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_weights, "READ_ABOVE", 1000)
    monkeypatch.setattr(streamed_weights, "KEPT", 4 * 30 * 20)  # of the first
    values = [torch.randn(30, 20), torch.randn(30, 30)]
    computed = [0, 0]

    def compute(index: int) -> torch.Tensor:
        computed[index] += 1
        return values[index]

    tensors = {
        f"{index}.weight": ComputedTensor(tuple(value.shape), lambda index=index: compute(index), "codes")
        for index, value in enumerate(values)
    }
    streamed = streamed_weights.StreamedWeights(tensors)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30, bias=False), torch.nn.Linear(30, 30, bias=False))
    model.load_state_dict(streamed.state_dict, assign=True)
    assert streamed.attach(model)
    x = torch.randn(2, 20)
    for _ in range(3):
        assert torch.equal(model(x), x @ values[0].T @ values[1].T)
    assert computed == [1, 3]
