"""What we read of a checkpoint, the format's own library reads too: GPTQModel's and compressed-tensors' layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_checkpoints import save_quantized
from small_tokenizers import byte_tokenizer

from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.runtime import generate
from intaglio.runtime.sessions.decoder import DecoderSession

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # the library's temporary folder
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "sliding_window": None, "eos_token_id": 262}
PROMPT = "The quick brown fox"
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("gptq", {"bits": bits}) for bits in (2, 3, 4, 8)),
    *(("gptq", {"bits": bits, "symmetric": False, "version": "gptq_v2"}) for bits in (2, 3, 4, 8)),
    ("gptq", {"symmetric": False, "ordered": False, "version": "gptq_v2"}),
    ("gptq", {"group_size": 128, "ordered": False}),
    ("awq", {"symmetric": False, "group_size": 64}),
    ("awq", {"group_size": 128}),
]


def check_bundle(checkpoint: Path, bundle: Path, peer: Callable[[Any], Any], tolerance: float) -> None:
    """Assert that the bundle of a checkpoint writes the peer's greedy text, with its logits within `tolerance`."""
    import torch

    assert export(str(checkpoint), bundle).passed
    prompt = byte_tokenizer().encode(PROMPT).ids
    text = next(iter(generate(bundle, [PROMPT], max_new_tokens=20))).tokens
    with torch.no_grad(), DecoderSession.open(bundle) as session:
        expected = peer(torch.tensor([[*prompt, *text]]))
        logits = session.prefill([[*prompt, *text]])[0]
    assert expected[len(prompt) - 1 : -1].argmax(1).tolist() == text
    np.testing.assert_allclose(logits, expected[-1], rtol=0, atol=tolerance)


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
@pytest.mark.parametrize(("method", "options"), CASES, ids=str)
def test_gptqmodel_reads_the_same_and_writes_the_same_text(
    model_type: str, method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    library = pytest.importorskip("gptqmodel", reason="pip install gptqmodel")
    import torch

    path = save_quantized(tmp_path, model_type, method, short_scales=True, **SIZES, **options)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    backend = library.BACKEND.TORCH_AWQ if method == "awq" else library.BACKEND.TORCH
    loaded = library.GPTQModel.load(str(path), device="cpu", backend=backend, dtype=torch.float16).model.float().eval()
    parameters = Checkpoint.open(str(path)).parameters()
    ours = {name: each for name, each in parameters.items() if isinstance(each, GroupedWeight)}
    assert len(ours) >= 14
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # compiling the layers takes minutes
        for name, weight in ours.items():
            module = loaded.get_submodule(name.removesuffix(".weight"))
            found = module(torch.eye(weight.shape[1]))
            found = found if module.bias is None else found - module.bias
            torch.testing.assert_close(found, weight.tensor.T, rtol=0, atol=0 if module.bias is None else 2e-3)
        # Its layers round activations to float16, relative to logits of up to 40.
        check_bundle(path, tmp_path / "bundle", lambda tokens: loaded(tokens).logits[0].numpy(), 0.1)


def name_scheme(path: Path, bits: int = 4, group_size: int = 32) -> None:
    """Write the scheme of the weights into config.json, as the library needs it."""
    config = json.loads(path.read_text())
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": group_size}
    group = {"targets": ["Linear"], "weights": weights}
    config["quantization_config"] |= {"config_groups": {"group_0": group}, "quantization_status": "compressed"}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
@pytest.mark.parametrize("options", [{}, {"bits": 8, "group_size": 64}], ids=str)
def test_transformers_reads_compressed_tensors_and_writes_the_same_text(
    model_type: str, options: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="pip install compressed-tensors")
    import torch
    from transformers import AutoModelForCausalLM

    path = save_quantized(tmp_path, model_type, "compressed-tensors", short_scales=True, **SIZES, **options)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    name_scheme(path / "config.json", **options)
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    # Our kernel rounds activations to 16 bits.
    check_bundle(path, tmp_path / "bundle", lambda tokens: loaded(tokens).logits[0].numpy(), 1e-2)
