"""An adapter is merged into the tensors of a checkpoint as peft merges it into the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import change_settings, merged_by_peft, save_adapter
from quantized_checkpoints import save_quantized
from tiny_decoders import save_decoder

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.adapters import open_adapter
from intaglio.exporters.checkpoints.checkpoint import Checkpoint

Once = Callable[[str, Callable[[Path], object]], Path]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all layers": {"target_modules": "all-linear", "lora_alpha": 3},
    "rank-stabilised": {"use_rslora": True, "r": 3},
    "ranks by pattern": {"rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 6}},
    "scales by pattern": {"alpha_pattern": {r".*\.v_proj": 3, "^model.layers.0.self_attn.q_proj": 0.5}},
    "DoRA": {"use_dora": True},
    "the embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "the embedding with DoRA": {"target_modules": ["embed_tokens"], "use_dora": True},
    "the head": {"target_modules": ["lm_head"], "use_rslora": True},
    "another head": {"modules_to_save": ["lm_head"]},
    "another embedding": {"modules_to_save": ["embed_tokens"]},
    "another of both": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "the embedding, another head": {"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"]},
    "the head, another embedding": {"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]},
    "tied by peft": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "some tokens": {"trainable_token_indices": [7, 5]},
    "tokens by module": {"trainable_token_indices": {"embed_tokens": [1]}},
    "a way to begin": {"init_lora_weights": "orthogonal"},
}


@pytest.fixture(scope="module")
def checkpoints(once: Once) -> dict[bool, Path]:
    """Tiny LLaMA checkpoints, with the head tied to the embedding and not."""

    def saved(tied: bool) -> Path:
        return once(f"adapters/llama-{tied}", lambda path: save_decoder(path, "llama", tie_word_embeddings=tied))

    return {tied: saved(tied) for tied in (False, True)}


def tensors_of(checkpoint: Path, adapter: Path, architecture: str = "LlamaForCausalLM") -> dict[str, Any]:
    return Checkpoint.open(str(checkpoint)).with_adapter(open_adapter(adapter), architecture).parameters()


def assert_as_peft(checkpoint: Path, adapter: Path, architecture: str = "LlamaForCausalLM") -> None:
    """Assert that every parameter of peft's merged model has the numbers of a tensor of the checkpoint."""
    import torch

    found = tensors_of(checkpoint, adapter, architecture)
    expected = merged_by_peft(checkpoint, adapter, architecture).state_dict()
    assert found.keys() <= expected.keys()
    changed = 0
    before = Checkpoint.open(str(checkpoint)).tensors()
    for name, tensor in expected.items():
        stored = name if name in found else {HEAD: EMBEDDING, EMBEDDING: HEAD}[name]  # tied
        numbers = found[stored].tensor.float()
        torch.testing.assert_close(numbers, tensor, rtol=0, atol=1e-6 * float(tensor.abs().max()))
        changed += name not in before or not torch.equal(numbers, before[name].tensor.float())
    assert changed


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("tied", [False, True])
def test_merged_weights_equal_those_of_peft(
    name: str, tied: bool, checkpoints: dict[bool, Path], tmp_path: Path
) -> None:
    adapter = save_adapter(checkpoints[tied], tmp_path / "adapter", **SETTINGS[name])
    assert_as_peft(checkpoints[tied], adapter)


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_biases_come_from_the_adapter(bias: str, tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "qwen2", "qwen2")
    assert_as_peft(
        checkpoint,
        save_adapter(checkpoint, tmp_path / "adapter", "Qwen2ForCausalLM", bias=bias),
        "Qwen2ForCausalLM",
    )


@pytest.mark.parametrize("dora", [False, True])
def test_square_weights_of_conv1d_are_transposed(dora: bool, tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "gpt2", "gpt2", tie_word_embeddings=False)
    modules = ["c_attn", "c_proj", "c_fc", "lm_head"]
    adapter = save_adapter(checkpoint, tmp_path / "adapter", "GPT2LMHeadModel", target_modules=modules, use_dora=dora)
    assert_as_peft(checkpoint, adapter, "GPT2LMHeadModel")


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "RobertaForSequenceClassification"])
def test_classifier_is_the_one_of_the_adapter(
    architecture: str, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(architecture, num_labels=3)
    adapter = save_adapter(
        checkpoint, tmp_path / "adapter", architecture, target_modules=["query", "dense"], bias="all"
    )
    assert_as_peft(checkpoint, adapter, architecture)


def test_numbers_in_half_precision_are_added_in_float32(checkpoints: dict[bool, Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    adapter = save_adapter(checkpoints[False], tmp_path / "adapter", use_dora=True)
    half = tmp_path / "half"
    for source, folder, name in ((checkpoints[False], half, "model"), (adapter, adapter, "adapter_model")):
        tensors = {key: tensor.to(torch.bfloat16) for key, tensor in load_file(source / f"{name}.safetensors").items()}
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / f"{name}.safetensors", {"format": "pt"})
    (half / "config.json").write_bytes((checkpoints[False] / "config.json").read_bytes())
    assert_as_peft(half, adapter)


def test_paths_may_lack_the_name_of_the_model(checkpoints: dict[bool, Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    adapter = save_adapter(checkpoints[True], tmp_path / "adapter", modules_to_save=["embed_tokens"])
    expected = tensors_of(checkpoints[True], adapter)
    weights = load_file(checkpoints[True] / "model.safetensors")
    bare = tmp_path / "bare"
    bare.mkdir()
    save_file({name.removeprefix("model."): each for name, each in weights.items()}, bare / "model.safetensors")
    (bare / "config.json").write_bytes((checkpoints[True] / "config.json").read_bytes())
    found = tensors_of(bare, adapter)
    assert found.keys() == {name.removeprefix("model.") for name in expected}
    for name, each in expected.items():
        assert torch.equal(found[name.removeprefix("model.")].tensor, each.tensor)


def test_weights_tied_in_two_copies_change_both(checkpoints: dict[bool, Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoints[True] / "model.safetensors")
    twice = tmp_path / "twice"
    twice.mkdir()
    save_file(weights | {HEAD: weights[EMBEDDING].clone()}, twice / "model.safetensors", {"format": "pt"})
    (twice / "config.json").write_bytes((checkpoints[True] / "config.json").read_bytes())
    adapter = save_adapter(checkpoints[True], tmp_path / "adapter", target_modules=["lm_head"])
    found = tensors_of(twice, adapter)
    assert torch.equal(found[HEAD].tensor, found[EMBEDDING].tensor)
    assert_as_peft(twice, adapter)


def test_weights_are_read_when_they_are_used(checkpoints: dict[bool, Path], tmp_path: Path) -> None:
    adapter = save_adapter(checkpoints[False], tmp_path / "adapter", target_modules="all-linear")
    found = tensors_of(checkpoints[False], adapter)
    first = found["model.layers.0.self_attn.q_proj.weight"]
    assert first.tensor is not first.tensor  # computed each time, and not kept
    assert first.shape == tuple(first.tensor.shape)


def test_codes_of_quantised_weights_are_not_merged(tmp_path: Path) -> None:
    quantized = save_quantized(tmp_path, "llama", "gptq")
    adapter = save_adapter(tmp_path / "float", tmp_path / "adapter")
    with pytest.raises(SourceError, match=r"q_proj\.weight of the checkpoint is quantised.* floating point"):
        tensors_of(quantized, adapter)


def test_settings_of_training_are_ignored(checkpoints: dict[bool, Path], tmp_path: Path) -> None:
    adapter = save_adapter(checkpoints[False], tmp_path / "adapter")
    change_settings(adapter, base_model_name_or_path="another/model", lora_dropout=0.5, eva_config={"rho": 2}, r=4)
    assert_as_peft(checkpoints[False], adapter)
    stated = json.loads((adapter / "adapter_config.json").read_text())
    assert stated["lora_dropout"] == 0.5
