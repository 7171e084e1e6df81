"""Other tools decode the same weights from what is written: compressed-tensors and GPTQModel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import byte_tokenizer
from tiny_families import save_family

from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.graph_passes import compress

pytestmark = pytest.mark.proof
SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "sliding_window": None, "eos_token_id": 262}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
}


def written(folder: Path, model: str, form: str, **given: Any) -> Path:
    """A random model, rounded by rtn with the options `given`, in the format."""
    model_type, options = MODELS[model]
    checkpoint = save_family(folder / "checkpoint", model_type, **SIZES | options)
    byte_tokenizer().save(str(checkpoint / "tokenizer.json"))
    export(checkpoint, folder / "bundle")
    head = [] if options else ["lm_head"]
    recipe = {"scale_dtype": "float16", "skip": head, **given}
    (folder / "recipe.yaml").write_text(json.dumps({"passes": [{"rtn": recipe}]}))
    compress(folder / "bundle", folder / "quantised", folder / "recipe.yaml")
    output = folder / f"written-{form}"
    assert export(folder / "quantised", output, format=form).passed
    return output


def grouped(path: Path) -> dict[str, GroupedWeight]:
    """The quantised weights that we read, by the paths of their layers."""
    found = Checkpoint.open(str(path)).parameters()
    return {name.removesuffix(".weight"): each for name, each in found.items() if isinstance(each, GroupedWeight)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("bits", "group_size", "symmetric"), [(4, 128, True), (3, 32, False), (8, 0, False)])
def test_compressed_tensors_decompresses_the_same(
    model: str, bits: int, group_size: int, symmetric: bool, tmp_path: Path
) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors", reason="pip install compressed-tensors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    import torch
    from safetensors.torch import load_file

    path = written(tmp_path, model, "compressed-tensors", bits=bits, group_size=group_size, symmetric=symmetric)
    config = json.loads((path / "config.json").read_text())["quantization_config"]
    (scheme,) = quantization.QuantizationConfig.model_validate(config).config_groups.values()
    compressor = compressors.BaseCompressor.get_value_from_registry("pack-quantized")
    tensors, ours = load_file(path / "model.safetensors"), grouped(path)
    assert ours
    for layer, weight in ours.items():
        parts = {name.removeprefix(f"{layer}."): each for name, each in tensors.items() if name.startswith(f"{layer}.")}
        found = compressor.decompress({key: each for key, each in parts.items() if key != "bias"}, scheme)["weight"]
        scales = parts["weight_scale"].dtype
        assert torch.equal(found, weight.tensor.to(scales)), layer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library's temporary folder
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("form", "bits", "group_size", "symmetric"),
    [
        ("gptq", 4, 128, True),
        ("gptq_v2", 4, 64, False),
        ("gptq", 8, 0, True),
        ("awq", 4, 64, False),
        ("awq", 4, 0, True),
    ],
)
def test_gptqmodel_dequantises_the_same(
    model: str, form: str, bits: int, group_size: int, symmetric: bool, tmp_path: Path
) -> None:
    library = pytest.importorskip("gptqmodel", reason="pip install gptqmodel")
    import torch

    path = written(tmp_path, model, form, bits=bits, group_size=group_size, symmetric=symmetric)
    backend = library.BACKEND.TORCH_AWQ if form == "awq" else library.BACKEND.TORCH
    loaded = library.GPTQModel.load(str(path), device="cpu", backend=backend, dtype=torch.float16).model.eval()
    ours = grouped(path)
    for layer, weight in ours.items():
        module = loaded.get_submodule(layer)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # compiling the layers takes minutes
            found = module(torch.eye(weight.shape[1], dtype=torch.float16))
            found = found if module.bias is None else found - module.bias
        expected = weight.tensor.T.half()
        assert torch.equal(found, expected) or module.bias is not None, layer
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3 if module.bias is not None else 0)
