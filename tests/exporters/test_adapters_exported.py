"""`export --adapter` of each kind of models: outputs and texts equal those of peft's merged model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_logits import TEXTS
from lora_adapters import change_settings, merged_by_peft, save_adapter
from tiny_decoders import save_decoder
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError
from intaglio.exporters import export, load_module
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.runtime import generate
from intaglio.runtime.sessions.step import decoder_of
from intaglio.validation import validate

Program = Callable[..., tuple[int, str, str]]
LAYERS = ["q_proj", "k_proj", "o_proj", "down_proj"]


def assert_as_merged(model: Any, bundle: Path) -> None:
    """Assert that logits and greedy texts equal the model's."""
    import torch
    from tokenizers import Tokenizer

    opened = Bundle.open(bundle)
    found = stepwise_outputs(opened.model_path, decoder_of(opened), TEXTS)["logits"]
    for actual, text in zip(found, TEXTS, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([text])).logits[0].numpy()
        np.testing.assert_allclose(actual, expected, atol=5e-6 * np.abs(expected).max(), rtol=0)
    text = "Hello world"
    ids = torch.tensor([Tokenizer.from_file(str(bundle / "tokenizer.json")).encode(text).ids])
    expected = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :].tolist()
    (found,) = generate(bundle, [text], max_new_tokens=24)
    assert list(found.tokens) == expected


def test_written_decoder(tmp_path: Path, intaglio: Program) -> None:
    checkpoint = save_decoder(tmp_path / "llama", "llama", tie_word_embeddings=True)
    adapter = save_adapter(
        checkpoint, tmp_path / "tuned", target_modules=LAYERS, modules_to_save=["lm_head"], use_dora=True
    )
    code, printed, _ = intaglio("export", checkpoint, "-o", tmp_path / "bundle", "--adapter", adapter)
    assert code == 0
    assert "tuned: an adapter, merged into 9 weights" in printed
    assert_as_merged(merged_by_peft(checkpoint, adapter), tmp_path / "bundle")


@pytest.mark.proof
@pytest.mark.parametrize(
    ("model_type", "architecture", "modules", "options"),
    [
        pytest.param(*("gemma2", "Gemma2ForCausalLM", [*LAYERS, "embed_tokens"], {}), marks=pytest.mark.proof),
        ("phi3", "Phi3ForCausalLM", ["qkv_proj", "gate_up_proj"], {"pad_token_id": 0}),
    ],
)
def test_traced_decoder(
    model_type: str, architecture: str, modules: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = save_family(tmp_path / "model", model_type, **options)
    adapter = save_adapter(checkpoint, tmp_path / "adapter", architecture, target_modules=modules)
    export(checkpoint, tmp_path / "bundle", adapter=adapter)
    assert_as_merged(merged_by_peft(checkpoint, adapter, architecture), tmp_path / "bundle")


def test_float16_is_rounded_after_merging(tmp_path: Path) -> None:
    from onnx_ir import load

    checkpoint = save_decoder(tmp_path / "llama", "llama")
    adapter = save_adapter(checkpoint, tmp_path / "adapter")
    assert export(checkpoint, tmp_path / "bundle", "float16", adapter=adapter).passed
    weights = load(Bundle.open(tmp_path / "bundle").model_path).graph.initializers
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = next(value.const_value for key, value in weights.items() if key.startswith(name))
    expected = merged_by_peft(checkpoint, adapter).state_dict()[name].half().numpy()
    assert stored is not None
    np.testing.assert_array_equal(stored.numpy(), expected.T if "transposed" in str(stored.name) else expected)


@pytest.mark.proof
def test_classifier(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    import torch

    architecture = "BertForSequenceClassification"
    checkpoint = make_checkpoint(architecture, num_labels=3)
    adapter = save_adapter(checkpoint, tmp_path / "adapter", architecture, target_modules=["query", "value"])
    assert export(checkpoint, tmp_path / "bundle", adapter=adapter).passed
    module = load_module(Bundle.open(tmp_path / "bundle").manifest.source)
    ids = torch.tensor([[2, 9, 11, 7, 3]])
    model = merged_by_peft(checkpoint, adapter, architecture)
    with torch.inference_mode():
        expected = model(ids).logits
        feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        found = module(*(feeds.get(name, torch.zeros_like(ids)) for name in module.input_names))
    torch.testing.assert_close(found[0], expected)


def test_validate_finds_the_adapter_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = save_decoder(tmp_path / "llama", "llama")
    adapter = save_adapter(checkpoint, tmp_path / "adapter")
    bundle = tmp_path / "bundle"
    export(checkpoint, bundle, adapter=adapter, check=False)
    source = json.loads((bundle / "bundle.json").read_text())["source"]
    assert source["adapter"]["location"] == "adapter"
    assert source["adapter"]["sha256"].keys() == {"adapter_config.json", "adapter_model.safetensors"}
    assert validate(bundle).passed
    assert validate(bundle, against=checkpoint).passed
    moved = Path(shutil.move(adapter, tmp_path / "moved"))
    with pytest.raises(SourceError, match="adapter adapter: the folder of this adapter is not known"):
        validate(bundle)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(moved, adapter)
    assert validate(bundle).passed
    change_settings(adapter, lora_alpha=7)
    with pytest.raises(SourceError, match=r"adapter_config\.json: SHA-256 .*, the bundle was exported from"):
        validate(bundle)


def test_other_tokenizer_of_the_adapter_is_noted(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "llama", "llama")
    adapter = save_adapter(checkpoint, tmp_path / "adapter")
    shutil.copy(checkpoint / "tokenizer.json", adapter)
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    notes = export(checkpoint, tmp_path / "bundle", adapter=adapter, check=False).notes
    assert [note for note in notes if "left out" in note] == [
        "adapter has another chat_template.jinja, which is left out: copy it into the checkpoint"
    ]
