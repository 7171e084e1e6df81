"""Exporting decoders: the check, the bundle, and refused checkpoints."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from decoder_logits import TEXTS, assert_same_logits, rewrite
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoders import FAMILIES, VOCABULARY, save_decoder

from intaglio.bundle.bundle import Bundle, Decoder
from intaglio.bundle.model_file import load
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.decoders.check import STEPS, pieces
from intaglio.exporters.decoders.traceable_decoder import DecoderModule
from intaglio.runtime import build, run
from intaglio.runtime.sessions.step import STEP
from intaglio.validation import validate

MakeDecoder = Callable[..., tuple[Path, Path]]


@pytest.mark.parametrize(
    ("family", "dtype"),
    few(
        [*((family, "float32") for family in FAMILIES), ("llama", "float16"), ("qwen3", "float16")],
        [("gpt2", "float32"), ("opt", "float32"), ("qwen3", "float16")],
    ),
)
def test_export_checks_the_logits_against_the_source(
    make_decoder: MakeDecoder, tmp_path: Path, family: str, dtype: str
) -> None:
    checkpoint, _ = make_decoder(family)
    result = export(str(checkpoint), tmp_path / "bundle", dtype=dtype)
    assert result.passed and result.outputs.keys() == {"logits"}
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.task == "generate" and manifest.dtype == dtype
    caches = {spec.dtype for spec in manifest.inputs if spec.name.startswith("past_")}
    assert caches == {dtype} and manifest.outputs[0].dtype == "float32"


@pytest.mark.parametrize("module", [DecoderModule, *DecoderModule.__subclasses__()])
def test_reference_takes_decode_step_inputs_by_name(module: type[DecoderModule]) -> None:
    _, *named, rest = inspect.signature(module.forward).parameters.values()
    assert [each.name for each in named] == [spec.name for spec in STEP]
    assert rest.kind is inspect.Parameter.VAR_POSITIONAL


@given(st.lists(st.integers(2, 60), min_size=1, max_size=4))
def test_check_covers_every_token_and_step_size(lengths: list[int]) -> None:
    cut = pieces(lengths)
    assert [index for piece in cut for index in range(piece.start, piece.stop)][: max(lengths)] == list(
        range(max(lengths))
    )
    if max(lengths) >= 16:
        assert set(STEPS) <= {piece.stop - piece.start for piece in cut[1:]}


def tables(bundle: Path) -> list[str]:
    """The names of the weights with a row or a column per token."""
    weights = load(bundle / "model.onnx").graph.initializers.items()
    return [name for name, value in weights if value.shape is not None and VOCABULARY in tuple(value.shape)]


def test_only_tied_embeddings_are_shared(make_decoder: MakeDecoder) -> None:
    checkpoint, bundle = make_decoder("gpt2")
    assert tables(bundle) == ["transformer.wte.weight"]
    assert (bundle / "model.onnx").stat().st_size < (checkpoint / "model.safetensors").stat().st_size + 40_000
    assert sorted(tables(make_decoder("llama")[1])) == ["lm_head.weight_transposed", "model.embed_tokens.weight"]


def test_tied_checkpoint_with_two_different_matrices_keeps_both(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    checkpoint, _ = make_decoder("gpt2")
    both = lambda found: {**found, "lm_head.weight": found["transformer.wte.weight"] * 2}  # noqa: E731
    folder = rewrite(checkpoint, tmp_path / "two", both)
    export(str(folder), tmp_path / "bundle", check=False)
    assert len(tables(tmp_path / "bundle")) == 2
    assert_same_logits(folder, tmp_path / "bundle")


def test_tied_checkpoint_may_hold_only_the_head(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    checkpoint, _ = make_decoder("gpt2")

    def head_only(found: dict[str, Any]) -> dict[str, Any]:
        table = found.pop("transformer.wte.weight")
        return {**found, "lm_head.weight": table}

    folder = rewrite(checkpoint, tmp_path / "head", head_only)
    export(str(folder), tmp_path / "bundle", check=False)
    assert tables(tmp_path / "bundle") == ["lm_head.weight"]
    assert_same_logits(folder, tmp_path / "bundle")


def test_checkpoint_without_head_has_unprefixed_names(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    checkpoint, _ = make_decoder("gpt2")

    def without_base(found: dict[str, Any]) -> dict[str, Any]:
        return {name.removeprefix("transformer."): tensor for name, tensor in found.items()}

    folder = rewrite(checkpoint, tmp_path / "short", without_base)
    export(str(folder), tmp_path / "bundle", check=False)
    assert_same_logits(checkpoint, tmp_path / "bundle")


def test_bfloat16_shards_become_float32(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    import torch
    import transformers

    checkpoint, _ = make_decoder("llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    shutil.copytree(checkpoint, tmp_path / "shards", ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    export(str(tmp_path / "shards"), tmp_path / "bundle", check=False)
    assert_same_logits(tmp_path / "shards", tmp_path / "bundle")


def test_graph_uses_fused_operators_and_module_names(make_decoder: MakeDecoder) -> None:
    model = load(make_decoder("llama")[1] / "model.onnx")
    types = [node.op_type for node in model.graph]
    counts = {"Attention": 2, "TensorScatter": 4, "RMSNormalization": 5, "RotaryEmbedding": 4, "Softmax": 0, "Gemm": 0}
    assert {name: types.count(name) for name in counts} == counts
    assert "model.layers.1.mlp.down_proj.weight_transposed" in model.graph.initializers
    products = [node for node in model.graph if node.op_type == "MatMul"]
    assert all(node.inputs[1] is not None and node.inputs[1].is_initializer() for node in products)
    assert all(value.shape is not None and value.dtype is not None for node in model.graph for value in node.outputs)


def test_manifest_describes_the_decoder(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    checkpoint, _ = make_decoder("llama")
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 5], "bos_token_id": 7}))
    export(str(folder), tmp_path / "bundle", check=False)
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.decoder == Decoder(
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        vocab_size=VOCABULARY,
        max_positions=64,
        bos_token_id=7,
        eos_token_ids=(256, 5),
    )
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= bundle.manifest.files.keys()


LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "cross-attention": ("gpt2", {"add_cross_attention": True}, "crossattention"),
    "activation": ("gpt2", {"activation_function": "unknown"}, "KeyError: .*unknown"),
    "widths": (
        "gpt2",
        {"n_inner": 100},
        r"6 do not have the shape .*c_fc\.weight: got \[32, 128\], expected \[32, 100\]",
    ),
    "more layers": ("gpt2", {"n_layer": 3}, r"12 weights .*are missing .*transformer\.h\.2\.attn\.c_attn"),
    "fewer layers": ("gpt2", {"n_layer": 1}, "weights belong to layers beyond those in config.json"),
    "dynamic rope": ("llama", {"rope_parameters": LINEAR | {"rope_type": "dynamic"}}, "type 'dynamic'"),
    "part of a head": ("llama", {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}}, "could not be traced"),
    "theta": ("llama", {"rope_parameters": LINEAR | {"rope_theta": -1.0}}, "rope_theta"),
    "windows": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
        "sliding_window is null in config.json, expected 1 or more tokens",
    ),
    "normalised heads, windows": (
        "qwen3",
        {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
        "sliding_window is null in config.json, expected 1 or more tokens",
    ),
    "chunks": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 2, "sliding_window": 8},
        "attention_chunk_size is null in config.json, expected 1 or more tokens",
    ),
    "windows of no length": (
        "qwen2",
        {"layer_types": ["sliding_attention"] * 2},
        "sliding_window is null in config.json, expected 1 or more tokens",
    ),
    "vocabulary": ("gpt2", {"vocab_size": 100}, r"transformer\.wte\.weight: got \[272, 32\], expected \[100, 32\]"),
    "width": ("gpt2", {"n_embd": [32]}, r"n_embd is '\[32\]', expected a number"),
    "end": ("gpt2", {"eos_token_id": 5000}, "a BOS or EOS id is 5000"),
}


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("bad", BAD)
def test_invalid_configuration_is_refused_in_one_line(
    make_decoder: MakeDecoder, tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: str, check: bool
) -> None:
    family, options, message = BAD[bad]
    checkpoint, _ = make_decoder(family)
    folder = Path(shutil.copytree(checkpoint, tmp_path / "bad"))
    (folder / "generation_config.json").unlink()
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **options}))
    capfd.readouterr()
    with pytest.raises(SourceError, match=message) as caught:
        export(str(folder), tmp_path / "bundle", check=check)
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "bundle").exists()


def test_cross_attention_to_an_encoder_is_refused(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "gpt2", n_layer=1, add_cross_attention=True)
    with pytest.raises(SourceError, match=r"add_cross_attention is true in config\.json, expected false") as caught:
        export(str(checkpoint), tmp_path / "bundle")
    assert "\n" not in str(caught.value)


def test_tokenizer_of_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "gpt2", n_layer=1, vocab_size=100, eos_token_id=None)
    with pytest.raises(SourceError, match="its tokenizer returns ids up to 256, the model expects ids below 100"):
        export(str(checkpoint), tmp_path / "bundle", check=False)


def test_missing_untied_head_is_refused(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    checkpoint, _ = make_decoder("llama")

    def headless(found: dict[str, Any]) -> dict[str, Any]:
        return {name: tensor for name, tensor in found.items() if name != "lm_head.weight"}

    folder = rewrite(checkpoint, tmp_path / "headless", headless)
    for check in (False, True):
        with pytest.raises(SourceError, match=r"1 weights .*missing.*lm_head\.weight"):
            export(str(folder), tmp_path / "bundle", check=check)
    export(str(rewrite(folder, tmp_path / "tied", dict, tie_word_embeddings=True)), tmp_path / "bundle", check=False)
    assert tables(tmp_path / "bundle") == ["model.embed_tokens.weight"]


def test_run_on_a_decoder_names_generate(tiny_decoder: Path) -> None:
    with pytest.raises(BundleError, match=r"is a decoder, which generates text\. Use: intaglio generate "):
        list(run(tiny_decoder, ["text"]))


@pytest.mark.parametrize("family", few(["gpt2", "mistral", "opt"], ["mistral"]))
def test_validation_compares_with_the_source_layer_by_layer(
    make_decoder: MakeDecoder, tmp_path: Path, family: str
) -> None:
    _, bundle = make_decoder(family)
    result = validate(bundle, bisect=True, samples=4, report=tmp_path)
    assert result.passed and result.first_layer_beyond is None
    assert {"logits", "present_key_0", "present_value_1"} <= result.outputs.keys()
    report = json.loads((tmp_path / "ort-cpu-against-pytorch.json").read_text())
    assert len(report["layers"]) >= 4


def test_validation_detects_logits_of_another_model(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    np.savez(tmp_path / "ids.npz", input_ids=np.array(TEXTS[0])[None])
    _, ours = make_decoder("mistral")
    _, other = make_decoder("mistral", initializer_range=0.1)
    result = validate(ours, against=other, data=tmp_path / "ids.npz", report=tmp_path)
    assert not result.passed
    assert not next(measure for measure in result.measures if measure.name == "kl_divergence").passed
    assert result.changes == "parts removed, replaced or trained (another checkpoint)"
    np.savez(tmp_path / "bad.npz", input_ids=np.array([[VOCABULARY]]))
    with pytest.raises(UsageError, match=f"ids {VOCABULARY} to {VOCABULARY}, expected 0 to {VOCABULARY - 1}"):
        validate(ours, data=tmp_path / "bad.npz", report=tmp_path)


@pytest.mark.parametrize("family", few(["gpt2", "mistral", "qwen3"], ["qwen3"]))
def test_float16_decoder_builds_for_t4_and_a100(make_decoder: MakeDecoder, tmp_path: Path, family: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    export(str(make_decoder(family)[0]), tmp_path / "bundle", dtype="float16", check=False)
    with pytest.raises(UsageError, match="axis capacity: TensorRT needs caches of one fixed length"):
        build(tmp_path / "bundle", "tensorrt-rtx", ["t4"], axes={"capacity": "1:2:3"})
    built = build(tmp_path / "bundle", "tensorrt-rtx", ["t4", "a100"], axes={"capacity": "48"})
    assert [(engine.sm, engine.profiles["past_key_0"]["max"][2]) for engine in built.engines] == [(75, 48), (80, 48)]
    assert {engine.profiles["input_ids"]["opt"][1] for engine in built.engines} == {1}
    Bundle.open(tmp_path / "bundle")
