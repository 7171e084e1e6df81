"""Exporting decoders by tracing: what the check sees, what the bundle says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from covering import few
from tiny_decoders import END, save_decoder, write_byte_tokenizer
from tiny_families import make_config, save_family

from intaglio.bundle.bundle import Bundle, Decoder, LayerCache
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.decoders import check as decoder_check
from intaglio.exporters.decoders.traced import export as traced_export
from intaglio.runtime import generate
from intaglio.validation import validate

WINDOW = 40  # longer than the sentences of the check
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32, "factor": 2.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Gemma 3 with a window, and its bundle."""
    folder = tmp_path_factory.mktemp("windowed")
    checkpoint = save_family(folder / "checkpoint", "gemma3_text", sliding_window=WINDOW, tie_word_embeddings=True)
    assert export(str(checkpoint), folder / "bundle").passed
    return checkpoint, folder / "bundle"


@pytest.mark.proof
def test_lost_window_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intaglio.exporters.decoders.step import Step

    # Of another length: equal models are traced once in the tests.
    checkpoint = save_family(tmp_path / "checkpoint", "gemma3_text", sliding_window=WINDOW + 1)
    monkeypatch.setattr(Step, "mask", lambda step, rule: step._mask[:, None])
    assert not export(str(checkpoint), tmp_path / "bundle").passed


@pytest.mark.proof
@pytest.mark.parametrize("options", [{"strategy": "speculative", "draft": True}, {"strategy": "ngram"}], ids=str)
def test_drafts_do_not_change_the_text_across_a_window(windowed: tuple[Path, Path], options: dict[str, Any]) -> None:
    bundle = windowed[1]
    options = {**options, **({"draft": bundle} if options.get("draft") else {})}
    prompts = ["ab ab ab ab", "A"]
    greedy, drafted = (
        [text.tokens for text in generate(bundle, prompts, max_new_tokens=50, batch=2, ignore_eos=True, **each)]
        for each in ({}, options)
    )
    assert greedy == drafted and len(greedy[0]) > WINDOW


@pytest.mark.proof
def test_float16_stays_within_its_bound(tmp_path: Path) -> None:
    checkpoint = save_family(tmp_path / "checkpoint", "gemma3_text")
    assert export(str(checkpoint), tmp_path / "bundle", dtype="float16").passed


def test_windows_that_the_check_cannot_cross_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config, notes = SimpleNamespace(sliding_window=1000, attention_chunk_size=None), list[str]()
    decoder = Decoder(layers=2, heads=4, kv_heads=2, head_dim=8, vocab_size=9, max_positions=4096)
    assert traced_export._past(config, decoder, notes) == 1016
    assert notes == []
    monkeypatch.setattr(decoder_check, "PAST_BYTES", 100 * 2 * 2 * (8 + 8) * 4)
    assert traced_export._past(config, decoder, notes) == 100
    assert notes == ["the check has caches of 100 tokens, so it does not cross sliding_window = 1000"]


def test_manifest_has_the_window_of_each_layer(windowed: tuple[Path, Path]) -> None:
    decoder = Bundle.open(windowed[1]).manifest.decoder
    assert decoder is not None and decoder.sliding_window is None
    assert decoder.caches == (LayerCache(2, 8, 8, WINDOW), LayerCache(2, 8, 8))


def test_weights_have_the_names_of_the_checkpoint_and_tied_ones_are_stored_once(windowed: tuple[Path, Path]) -> None:
    from safetensors import safe_open

    with safe_open(windowed[0] / "model.safetensors", "np") as file:
        named = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    graph = load(Bundle.open(windowed[1]).model_path).graph
    matrices = {
        name.removesuffix("_transposed") for name, value in graph.initializers.items() if value.shape.rank() == 2
    }
    assert matrices == {name for name, shape in named.items() if len(shape) == 2}


def test_norms_rotations_and_activations_are_single_nodes(windowed: tuple[Path, Path]) -> None:
    operators = [node.op_type for node in load(Bundle.open(windowed[1]).model_path).graph]
    # Four norms and two of queries and keys in each of two layers, and one behind them.
    assert operators.count("RMSNormalization") == 13 and "ReduceMean" not in operators and "Pow" not in operators
    assert operators.count("RotaryEmbedding") == 4 and "Neg" not in operators
    assert operators.count("Gelu") == 2 and "Tanh" not in operators


def test_bisection_compares_the_blocks_with_the_modules_of_the_source(windowed: tuple[Path, Path]) -> None:
    found = validate(windowed[1], bisect=True)
    assert found.passed and found.first_layer_beyond is None
    written = json.loads(Path(found.report).with_suffix(".json").read_text())
    compared = {layer["layer"] for layer in written["layers"]}
    assert compared >= {"model.layers.0", "model.layers.1", "lm_head"}


@pytest.mark.proof
@pytest.mark.parametrize(("context", "positions"), few([("short", 32), ("long", 64)], [("long", 64)]))
def test_frequencies_of_a_context_are_exact(tmp_path: Path, context: str, positions: int) -> None:
    checkpoint = save_family(
        tmp_path / "checkpoint", "phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32
    )
    with pytest.raises(SourceError, match=r"more than 32 tokens.*--context short or --context long"):
        export(str(checkpoint), tmp_path / "bundle")
    assert export(str(checkpoint), tmp_path / context, context=context).passed
    decoder = Bundle.open(tmp_path / context).manifest.decoder
    assert decoder is not None and decoder.context == context and decoder.max_positions == positions
    assert validate(tmp_path / context).passed


@pytest.mark.proof
def test_written_family_with_dynamic_frequencies_is_traced(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "llama", rope_parameters=DYNAMIC)
    assert export(str(checkpoint), tmp_path / "bundle", context="short").passed
    with pytest.raises(SourceError, match="change with each token"):
        export(str(checkpoint), tmp_path / "long", context="long")


def test_context_without_effect_is_refused(windowed: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this has another"):
        export(str(windowed[0]), tmp_path / "bundle", context="short")


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("mamba", "keeps a recurrent state"), ("bloom", "computes its attention itself"), ("jamba", "recurrent state")],
)
def test_models_of_other_state_or_attention_are_refused_by_name(tmp_path: Path, model_type: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    write_byte_tokenizer(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(SourceError, match=reason):
        export(str(tmp_path), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_missing_expert_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    checkpoint = save_family(tmp_path / "checkpoint", "mixtral")
    path = checkpoint / "model.safetensors"
    tensors: dict[str, Any] = load_file(path)
    lost = next(name for name in tensors if "experts.3" in name)
    save_file({name: array for name, array in tensors.items() if name != lost}, path, {"format": "pt"})
    with pytest.raises(SourceError, match=r"3 of 4 experts for model.*experts\.\*\.w"):
        export(str(checkpoint), tmp_path / "bundle")
    tensors[lost] = np.zeros((3, 3), np.float32)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(SourceError, match="experts of 2 shapes"):
        export(str(checkpoint), tmp_path / "bundle")


@pytest.mark.proof
def test_windows_from_some_layer_on_are_traced(tmp_path: Path) -> None:
    """Older files of Qwen2 have no kinds of layers, but say from which layer on there are windows."""
    options = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    checkpoint = save_decoder(tmp_path / "checkpoint", "qwen2", **options)
    stated = json.loads((checkpoint / "config.json").read_text())
    del stated["layer_types"]
    (checkpoint / "config.json").write_text(json.dumps(stated))
    assert export(str(checkpoint), tmp_path / "bundle").passed
    decoder = Bundle.open(tmp_path / "bundle").manifest.decoder
    assert decoder is not None and [cache.window for cache in decoder.caches] == [None, 8]


@pytest.mark.proof
def test_text_of_a_model_that_reads_images(tmp_path: Path) -> None:
    import torch
    import transformers

    text = make_config("gemma3_text").to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=5, eos_token_id=END
    )
    torch.manual_seed(0)
    transformers.Gemma3ForConditionalGeneration(config).eval().float().save_pretrained(tmp_path / "checkpoint")
    write_byte_tokenizer(tmp_path / "checkpoint")
    result = export(str(tmp_path / "checkpoint"), tmp_path / "bundle")
    assert result.passed
    (note,) = result.notes
    assert note.startswith("text does not use") and "vision_tower" in note
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.architecture == "Gemma3ForConditionalGeneration" and manifest.decoder is not None
    assert list(manifest.layers) and not any(
        "vision" in name for name in load(tmp_path / "bundle/model.onnx").graph.initializers
    )
