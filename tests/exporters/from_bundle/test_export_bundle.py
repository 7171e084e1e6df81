"""A decoder's bundle is written as other tools read it, and read again with the same codes."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf
from small_tokenizers import byte_tokenizer
from tiny_decoders import save_decoder
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load, save
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.exporters.from_bundle.graph_weights import graph_weights
from intaglio.exporters.writing.safetensors_parts import LARGEST_PART
from intaglio.files.hashes import sha256
from intaglio.graph_passes import compress

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "eos_token_id": 262}
FOLDERS = ("gptq", "gptq_v2", "awq", "compressed-tensors")


def quantised(bundle: Path, folder: Path, **options: Any) -> Path:
    """`bundle` after rtn with scales in float16."""
    recipe = folder / "recipe.yaml"
    given = {"group_size": 32, "symmetric": True, "scale_dtype": "float16", **options}
    recipe.write_text(json.dumps({"passes": [{"rtn": given}]}))
    compress(bundle, folder / "quantised", recipe)
    return folder / "quantised"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaMA, whose tokenizer has merges. Read-only."""
    folder = tmp_path_factory.mktemp("llama")
    checkpoint = save_decoder(folder / "checkpoint", "llama", **SIZES)
    byte_tokenizer().save(str(checkpoint / "tokenizer.json"))
    export(checkpoint, folder / "bundle", check=False)
    return folder / "bundle"


@pytest.fixture(scope="module")
def in_groups(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in 4 bits, symmetric, its head in floating point. Read-only."""
    return quantised(bundle, tmp_path_factory.mktemp("groups"), skip=["lm_head"])


def weights_of(path: Path) -> dict[str, Any]:
    """The weights of a bundle."""
    return graph_weights(load(path / "model.onnx")).tensors


def check_equal(expected: dict[str, Any], found: dict[str, Any], codes: bool = True) -> None:
    """Check that two sets of weights have the same numbers, and codes."""
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name].tensor.numpy(), weight.tensor.numpy(), name)
        if codes and isinstance(weight, GroupedWeight):
            for one, other in zip(found[name].read(), weight.read(), strict=True):
                np.testing.assert_array_equal(one, other, name)


@pytest.mark.parametrize("form", [*FOLDERS, "gguf"])
def test_written_weights_are_read_again(form: str, in_groups: Path, tmp_path: Path) -> None:
    output = tmp_path / "written"
    result = export(in_groups, output, format=form, check=False)
    assert (result.bundle, result.passed, result.outputs) == (str(output), None, {})
    opened = Checkpoint.open(str(output))
    check_equal(weights_of(in_groups), opened.parameters())
    for name in ("tokenizer.json", "config.json"):
        assert (opened.folder / name).is_file()
    assert opened.config["quantization_config"]["quant_method"] == form.removesuffix("_v2")


def test_the_bundle_is_compared_with_what_was_written(in_groups: Path, tmp_path: Path) -> None:
    result = export(in_groups, tmp_path / "written", format="compressed-tensors", max_abs=0.0)
    assert result.passed is False and 0 < result.outputs["logits"].max_abs < 1e-3  # activations have 16 bits


def test_a_head_with_codes_is_no_longer_tied(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "qwen2", **SIZES, tie_word_embeddings=True)
    export(checkpoint, tmp_path / "bundle", check=False)
    tied = quantised(tmp_path / "bundle", tmp_path)
    export(tied, tmp_path / "tied", format="compressed-tensors", check=False)
    config = json.loads((tmp_path / "tied/config.json").read_text())
    assert config["tie_word_embeddings"] and config["quantization_config"]["ignore"] == ["lm_head"]
    (tmp_path / "own").mkdir()
    own = quantised(tmp_path / "bundle", tmp_path / "own", tied=True)
    export(own, tmp_path / "untied", format="compressed-tensors", check=False)
    config = json.loads((tmp_path / "untied/config.json").read_text())
    assert config["tie_word_embeddings"] is False and config["quantization_config"]["ignore"] == []
    found = Checkpoint.open(str(tmp_path / "untied")).parameters()
    assert isinstance(found["lm_head.weight"], GroupedWeight)
    check_equal(weights_of(own), found)


@pytest.mark.parametrize("form", ["gptq", "compressed-tensors"])
def test_scales_in_float32_are_written_where_the_format_has_them(form: str, bundle: Path, tmp_path: Path) -> None:
    wide = quantised(bundle, tmp_path, scale_dtype="float32", skip=["lm_head"])
    if form == "compressed-tensors":
        export(wide, tmp_path / "written", format=form, check=False)
        check_equal(weights_of(wide), Checkpoint.open(str(tmp_path / "written")).parameters())
    else:
        with pytest.raises(SourceError, match=r"^model\.layers\.0\.\S+: .*scale_dtype: float16"):
            export(wide, tmp_path / "written", format=form, check=False)
    assert form == "compressed-tensors" or not (tmp_path / "written").exists()


def test_several_files_have_an_index(in_groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intaglio.exporters.writing.safetensors_parts.LARGEST_PART", LARGEST_PART >> 16)
    export(in_groups, tmp_path / "written", format="gptq", check=False)
    listed = json.loads((tmp_path / "written/model.safetensors.index.json").read_text())
    assert len(set(listed["weight_map"].values())) > 2
    check_equal(weights_of(in_groups), Checkpoint.open(str(tmp_path / "written")).parameters())


def test_other_bundles_are_refused_by_name(
    bundle: Path, in_groups: Path, tiny_bundle: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"a bundle of the task .*only those of decoders"):
        export(tiny_bundle, tmp_path / "a", format="gptq")
    with pytest.raises(SourceError, match="no weight is quantised in groups"):
        export(bundle, tmp_path / "a", format="awq")
    compress(bundle, tmp_path / "int8", "int8-weights")
    with pytest.raises(SourceError, match=r"^model\.\S+: stored for DequantizeLinear"):
        export(tmp_path / "int8", tmp_path / "a", format="gptq")
    conv = quantised(tiny_decoder, tmp_path)  # GPT-2 stores its weights transposed
    with pytest.raises(SourceError, match="its graph does not have the weights of the model"):
        export(conv, tmp_path / "a", format="compressed-tensors", check=False)
    with pytest.raises(SourceError, match="no file of the model type gpt2 is written"):
        export(conv, tmp_path / "a", format="gguf", check=False)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").touch()
    with pytest.raises(UsageError, match="the directory exists"):
        export(in_groups, tmp_path / "there", format="gptq")
    with pytest.raises(UsageError, match="exists"):
        export(in_groups, tmp_path / "there", format="gguf")
    with pytest.raises(UsageError, match="format 'exl2': expected one of gguf, gptq"):
        export(in_groups, tmp_path / "a", format="exl2")
    with pytest.raises(UsageError, match="--dtype is for the export of a checkpoint"):
        export(in_groups, tmp_path / "a", "float16", format="gptq")
    assert not (tmp_path / "a").exists()


def test_lookup_tables_are_refused_by_the_name_of_their_layer(in_groups: Path) -> None:
    model = load(in_groups / "model.onnx")
    node = next(node for node in model.graph if node.op_type == "GroupMatMul")
    node.op_type = "LutMatMul"
    with pytest.raises(SourceError, match=r"^model\.layers\.0\.self_attn\.q_proj: stored for LutMatMul"):
        graph_weights(model)


def test_a_missing_weight_is_refused_by_name(in_groups: Path, tmp_path: Path) -> None:
    copy = copytree(in_groups, tmp_path / "copy")
    model = load(copy / "model.onnx")
    norm = model.graph.initializers["model.norm.weight"]
    norm.name = "folded"
    save(model, copy / "model.onnx")
    manifest = json.loads((copy / "bundle.json").read_text())
    entry = manifest["files"]["model.onnx"]
    entry |= {"sha256": sha256(copy / "model.onnx"), "bytes": (copy / "model.onnx").stat().st_size}
    (copy / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(SourceError, match=r"1 weights of LlamaForCausalLM are missing .*model\.norm\.weight"):
        export(copy, tmp_path / "written", format="gptq", check=False)
    assert not (tmp_path / "written").exists()


@pytest.mark.proof
def test_blocks_of_a_gguf_file_are_written_again(tmp_path: Path) -> None:
    checkpoint = save_family(tmp_path / "checkpoint", "llama", hidden_size=64, intermediate_size=64, head_dim=16)
    tensors = {"embd": "Q8_0", "attn_[qk]": "Q4_1", "attn_[vo]": "Q4_0", "ffn_down": "Q5_0", "ffn_[gu]": "Q8_0"}
    source = write_gguf(checkpoint, tmp_path / "source.gguf", "llama", tensors)
    export(source, tmp_path / "bundle")
    export(tmp_path / "bundle", tmp_path / "again.gguf", format="gguf")
    first, again = (Checkpoint.open(str(tmp_path / name)) for name in ("source.gguf", "again.gguf"))
    check_equal(first.parameters(), again.parameters(), codes=False)
    assert first.gguf is not None and again.gguf is not None
    for name, tensor in first.gguf.file.tensors.items():
        found = again.gguf.file.tensors[name]
        assert found.type == tensor.type, name
        np.testing.assert_array_equal(found.rows(), tensor.rows(), name)


@pytest.mark.proof
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mixtral", "qwen3"])
@pytest.mark.parametrize("form", [*FOLDERS, "gguf"])
def test_bundle_exported_again_has_the_same_codes(model_type: str, form: str, tmp_path: Path) -> None:
    biased = {"attention_bias": True} if model_type == "llama" else {}
    options = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "sliding_window": None, **biased}
    checkpoint = save_family(tmp_path / "checkpoint", model_type, **options)
    tokenizer = byte_tokenizer()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    export(checkpoint, tmp_path / "bundle")
    first = quantised(tmp_path / "bundle", tmp_path, skip=["lm_head"])
    assert export(first, tmp_path / "written", format=form).passed
    assert export(tmp_path / "written", tmp_path / "again").passed
    check_equal(weights_of(first), weights_of(tmp_path / "again"))
    assert Bundle.open(tmp_path / "again").manifest.decoder == Bundle.open(first).manifest.decoder
