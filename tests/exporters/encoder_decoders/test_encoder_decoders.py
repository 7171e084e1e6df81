"""Exported encoder-decoders: inputs and outputs equal the source model for every family, shape and dtype."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from covering import examples, few
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_decoders import END, VOCABULARY
from tiny_encoder_decoders import FAMILIES, PADDING, SIZES

from intaglio.bundle.bundle import Bundle, Decoder
from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.inspection import inspect
from intaglio.bundle.model_file import load, outline
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.encoder_decoders.check import Pair, outputs_of
from intaglio.exporters.reference.check import Floats, in_rows
from intaglio.exporters.writing.relative_positions import RelativePositions
from intaglio.graph_passes import compress
from intaglio.runtime import build, open_engine
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.onnxruntime.stored import stored_engine
from intaglio.runtime.engines.tensorrt.engine import select
from intaglio.validation import validate
from intaglio.validation.comparison.graph_values import expose_values

Make = Callable[..., tuple[Path, Path]]
OUTPUTS = ("cross_key", "cross_value", "logits")
PAIRS = [
    Pair(list(b"The cat sat on the mat, and went to sleep."), [PADDING, *b"Le chat"]),
    Pair(list(b"No"), [PADDING, *b"Non, jamais de la vie, dit-il."]),
    Pair(list(b"A third text"), [PADDING, *b"Un troisieme"]),
]


def source_outputs(checkpoint: Path, pairs: list[Pair]) -> dict[str, list[Floats]]:
    """The outputs of transformers in float32, for each pair alone and without a cache."""
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    found: dict[str, list[Floats]] = {name: [] for name in OUTPUTS}
    with torch.inference_mode():
        for pair in pairs:
            out = model(
                input_ids=torch.tensor([pair.source]), decoder_input_ids=torch.tensor([pair.written]), use_cache=True
            )
            crossed = out.past_key_values.cross_attention_cache.layers
            keys, values = torch.cat([each.keys for each in crossed]), torch.cat([each.values for each in crossed])
            for arrays, tensor in zip(found.values(), (keys, values, out.logits[0]), strict=True):
                arrays.append(tensor.numpy())
    return found


def graph_outputs(bundle: Path, pairs: list[Pair]) -> dict[str, list[Floats]]:
    manifest = Bundle.open(bundle).manifest
    assert manifest.decoder is not None and manifest.encoder is not None
    return outputs_of(bundle, manifest.decoder, manifest.encoder, pairs)


def assert_same_outputs(checkpoint: Path, bundle: Path) -> None:
    """The outputs of the graphs, in a batch padded on both sides and in decode steps, equal the source."""
    found, expected = graph_outputs(bundle, PAIRS), source_outputs(checkpoint, PAIRS)
    for name in OUTPUTS:
        actual, wanted = in_rows(found[name]), in_rows(expected[name])
        np.testing.assert_allclose(actual, wanted, atol=4e-6 * np.abs(wanted).max(), rtol=0, err_msg=name)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied, scaled": ("t5", {}),
    "version 1.1": ("t5", {"untied": True, "feed_forward_proj": "gated-gelu"}),
    "exact gelu": ("t5", {"feed_forward_proj": "gelu"}),
    "multilingual": ("mt5", {}),
    "multilingual, head of its own": ("mt5", {"untied": True}),
    "more layers in the decoder": ("t5", {"num_layers": 1, "num_decoder_layers": 3}),
    "biases in every block": ("umt5", {}),
    "uneven buckets": ("t5", {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 9}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_equal_the_source_for_every_shape(make_encoder_decoder: Make, variant: str) -> None:
    family, options = VARIANTS[variant]
    assert_same_outputs(*make_encoder_decoder(family, **options))


@pytest.mark.covering(1)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_export_checks_both_graphs_against_the_source(
    make_encoder_decoder: Make, tmp_path: Path, family: str, dtype: str
) -> None:
    checkpoint, _ = make_encoder_decoder(family)
    result = export(str(checkpoint), tmp_path / "bundle", dtype=dtype)
    assert result.passed and result.outputs.keys() == set(OUTPUTS)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.task == "text-to-text" and manifest.dtype == dtype and manifest.encoder is not None
    assert {spec.dtype for spec in manifest.encoder.outputs} == {dtype}
    read = {spec.name: spec for spec in manifest.inputs if spec.name.startswith("cross_")}
    assert read == {spec.name: spec for spec in manifest.encoder.outputs}
    assert manifest.outputs[0].name == "logits" and manifest.outputs[0].dtype == "float32"


@settings(max_examples=examples(100))
@given(st.integers(4, 64), st.integers(2, 300), st.booleans())
def test_position_buckets_equal_transformers_at_every_distance(buckets: int, furthest: int, both_ways: bool) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    assume(furthest > buckets // 2)
    reach = 2 * furthest + 3  # distances beyond the maximum share its bucket
    distances = np.arange(-reach if both_ways else 0, reach + 1)
    relative = torch.from_numpy(distances if both_ways else -distances)
    expected = T5Attention._relative_position_bucket(relative, both_ways, buckets, furthest).numpy()
    numbers = RelativePositions(buckets, furthest, both_ways).numbers()
    shift = furthest if both_ways else 0
    np.testing.assert_array_equal(numbers[np.clip(distances, -shift, furthest) + shift], expected)


def test_greedy_output_equals_transformers_token_for_token(make_encoder_decoder: Make) -> None:
    import torch
    import transformers

    checkpoint, bundle = make_encoder_decoder("mt5", untied=True)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint).eval()
    source = torch.tensor([PAIRS[0].source])
    whole = model.generate(source, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)[0].tolist()
    text = [PADDING]
    while len(text) < len(whole):
        logits = graph_outputs(bundle, [Pair(PAIRS[0].source, text)])["logits"][0]
        text.append(int(logits[-1].argmax()))
    assert text == whole
    assert len(set(text)) > 3, "a text of one token proves nothing"


def branches(engine: Any, decoder: Decoder, crossed: dict[str, Any], start: int) -> npt.NDArray[np.float32]:
    """The logits of the branches [7, 8] and [9] after the tokens [PADDING, 5, 6], verified as a tree in one step."""
    dtypes = {spec.name: spec.dtype for spec in engine.inputs}
    shape = (1, decoder.kv_heads, 16, decoder.head_dim)
    past = {name: np.zeros(shape, dtype) for name, dtype in dtypes.items() if name.startswith("past_")}
    common = {"source_mask": np.ones((1, crossed["cross_key_0"].shape[2]), np.bool_), **crossed}
    slots = np.arange(16)
    step = {
        "input_ids": np.array([[PADDING, 5, 6]]),
        "positions": np.array([[0, 1, 2]]),
        "attention_mask": (slots <= np.arange(3)[:, None])[None],
        "write_start": np.array([0]),
        "logit_indices": np.array([[2]]),
    }
    outputs = engine.run({**step, **past, **common})
    past = {name: outputs[name.replace("past", "present")] for name in past}
    mask = np.broadcast_to(slots < 3, (1, 3, 16)).copy()
    mask[0, 0, 3] = mask[0, 1, [3, 4]] = mask[0, 2, 5] = True
    step = {
        "input_ids": np.array([[7, 8, 9]]),
        "positions": np.array([[3, 4, 3]]),
        "attention_mask": mask,
        "write_start": np.array([start]),
        "logit_indices": np.array([[0, 1, 2]]),
    }
    return np.asarray(engine.run({**step, **past, **common})["logits"][0])


def test_position_biases_of_a_token_tree_ignore_cache_slots(make_encoder_decoder: Make) -> None:
    checkpoint, bundle = make_encoder_decoder("t5")
    manifest = Bundle.open(bundle).manifest
    assert manifest.decoder is not None
    source = PAIRS[0].source
    with open_engine(bundle / "encoder.onnx") as engine:
        crossed = engine.run({"source_ids": np.array([source]), "source_mask": np.ones((1, len(source)), np.bool_)})
    with open_engine(bundle) as engine:
        found = branches(engine, manifest.decoder, crossed, start=3)
    pairs = [Pair(source, [PADDING, 5, 6, 7, 8]), Pair(source, [PADDING, 5, 6, 9])]
    first, second = source_outputs(checkpoint, pairs)["logits"]
    expected = np.stack([first[3], first[4], second[3]])
    np.testing.assert_allclose(found, expected, atol=4e-6 * np.abs(expected).max(), rtol=0)


def test_source_padding_does_not_change_the_output(make_encoder_decoder: Make) -> None:
    _, bundle = make_encoder_decoder("t5")
    ids, mask = np.array([[1, 2, 3, 9, 9], [1, 2, 3, 250, 7]]), np.array([[True] * 3 + [False] * 2] * 2)
    with open_engine(bundle / "encoder.onnx") as engine:
        for array in engine.run({"source_ids": ids, "source_mask": mask}).values():
            np.testing.assert_array_equal(array[0, :, :3], array[1, :, :3])
        empty = engine.run({"source_ids": ids, "source_mask": np.zeros_like(mask)})
    assert all(np.isfinite(array).all() for array in empty.values())


def test_both_graphs_share_the_embedding(make_encoder_decoder: Make) -> None:
    checkpoint, bundle = make_encoder_decoder("t5")
    assert (bundle / "shared.data").stat().st_size == 4 * VOCABULARY * SIZES["d_model"]
    graphs = [load(bundle / name).graph for name in ("encoder.onnx", "model.onnx")]
    assert all(str(graph.initializers["shared.weight"].const_value.location) == "shared.data" for graph in graphs)
    stored = sum((bundle / name).stat().st_size for name in ("encoder.onnx", "model.onnx", "shared.data"))
    assert stored < (checkpoint / "model.safetensors").stat().st_size + 60_000


def test_compressing_a_bundle_of_links_keeps_shared_weights(make_encoder_decoder: Make, tmp_path: Path) -> None:
    _, bundle = make_encoder_decoder("t5")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "linked").mkdir()
    for number, file in enumerate(path for path in bundle.iterdir() if path.is_file()):
        shutil.copy(file, tmp_path / "blobs" / str(number))
        (tmp_path / "linked" / file.name).symlink_to(tmp_path / "blobs" / str(number))
    compress(tmp_path / "linked", tmp_path / "folded", "fold")
    for name in ("encoder.onnx", "model.onnx"):
        weight = load(tmp_path / "folded" / name).graph.initializers["shared.weight"].const_value
        assert str(weight.location) == "shared.data"
        np.testing.assert_array_equal(
            weight.numpy(), load(bundle / name).graph.initializers["shared.weight"].const_value.numpy()
        )
    assert not (tmp_path / "folded" / "shared.data").is_symlink()


def rewrite(checkpoint: Path, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, folder)
    tensors = {name: tensor.contiguous() for name, tensor in change(load_file(folder / "model.safetensors")).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_copied_embeddings_of_a_checkpoint_are_deduplicated(make_encoder_decoder: Make, tmp_path: Path) -> None:
    checkpoint, bundle = make_encoder_decoder("t5")
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    copies = lambda found: {**found, **{name: found["shared.weight"].clone() for name in names}}  # noqa: E731
    export(str(rewrite(checkpoint, tmp_path / "copies", copies)), tmp_path / "bundle", check=False)
    for name in ("model.onnx", "encoder.onnx", "shared.data"):
        assert (tmp_path / "bundle" / name).read_bytes() == (bundle / name).read_bytes()


def test_manifest_describes_both_graphs(make_encoder_decoder: Make, tmp_path: Path) -> None:
    checkpoint, bundle = make_encoder_decoder("mt5")
    manifest = Bundle.open(bundle).manifest
    assert manifest.decoder == Decoder(
        layers=2, heads=4, kv_heads=4, head_dim=12, vocab_size=VOCABULARY, max_positions=1 << 16, eos_token_ids=(END,)
    )
    encoder = manifest.encoder
    assert encoder is not None
    assert (encoder.file, encoder.decoder_start_token_id, encoder.pad_token_id) == ("encoder.onnx", PADDING, PADDING)
    assert "encoder.block.2.layer.1.DenseReluDense.wo" in encoder.layers
    assert "decoder.block.1.layer.1.EncDecAttention.o" in manifest.layers
    assert {"encoder.onnx", "shared.data", "generation_config.json"} <= manifest.files.keys()
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    (folder / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 3, "pad_token_id": 4}))
    export(str(folder), tmp_path / "bundle", check=False)
    named = Bundle.open(tmp_path / "bundle").manifest.encoder
    assert named is not None and (named.decoder_start_token_id, named.pad_token_id) == (3, 4)


def test_every_weight_is_counted_once(make_encoder_decoder: Make) -> None:
    import transformers

    checkpoint, bundle = make_encoder_decoder("t5")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    found = inspect(bundle)
    assert found.parameters == model.num_parameters()
    assert 32 <= found.bits_per_weight < 33
    assert found.operators["TensorScatter"] == 4 and found.operators["Attention"] == 3 + 2 * 2
    assert found.encoder is not None and found.encoder.outputs[0].name == "cross_key_0"


def test_damaged_encoder_is_reported_on_opening(make_encoder_decoder: Make, tmp_path: Path) -> None:
    _, bundle = make_encoder_decoder("t5")
    for number, (change, message) in enumerate(
        [
            (lambda encoder: encoder.update(file="../encoder.onnx"), r"\.\./encoder\.onnx is not listed"),
            (lambda encoder: encoder.update(file="shared.data"), "not a readable ONNX file|without a graph"),
            (lambda encoder: encoder["outputs"].pop(), "lists the outputs cross_key_0"),
            (lambda encoder: encoder["axes"].update(source={"minimum": 3, "maximum": 2}), "invalid length"),
        ]
    ):
        copy = Path(shutil.copytree(bundle, tmp_path / str(number)))
        manifest = json.loads((copy / "bundle.json").read_text())
        change(manifest["encoder"])
        (copy / "bundle.json").write_text(json.dumps(manifest))
        with pytest.raises(BundleError, match=message):
            Bundle.open(copy)
    copy = Path(shutil.copytree(bundle, tmp_path / "bytes"))
    damaged = bytearray((copy / "encoder.onnx").read_bytes())
    damaged[-1] ^= 1
    (copy / "encoder.onnx").write_bytes(damaged)
    with pytest.raises(BundleError, match=r"encoder\.onnx: SHA-256"):
        Bundle.open(copy)


def test_compressing_copies_the_encoder_and_keeps_shared_weights(make_encoder_decoder: Make, tmp_path: Path) -> None:
    _, bundle = make_encoder_decoder("t5", d_model=64, d_ff=128)
    result = compress(bundle, tmp_path / "small", "int8-weights")
    assert result.untouched == ["encoder.onnx"]
    for name in ("encoder.onnx", "shared.data"):
        assert (tmp_path / "small" / name).read_bytes() == (bundle / name).read_bytes()
    stored = sum((tmp_path / "small" / name).stat().st_size for name in ("encoder.onnx", "model.onnx", "shared.data"))
    assert result.bytes_after == stored < result.bytes_before
    expected, found = (in_rows(graph_outputs(path, PAIRS)["logits"]) for path in (bundle, tmp_path / "small"))
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    compress(bundle, tmp_path / "plain", "prune-magnitude")
    assert str(load(tmp_path / "plain" / "model.onnx").graph.initializers["shared.weight"].const_value.location) == (
        "shared.data"
    )


@pytest.mark.proof
def test_compressing_the_encoder_copies_the_decoder(make_encoder_decoder: Make, tmp_path: Path) -> None:
    """Weights that both graphs use stay shared, and are the encoder's own once it has changed them."""
    _, bundle = make_encoder_decoder("t5", d_model=64, d_ff=128)
    expected = in_rows(graph_outputs(bundle, PAIRS)["logits"])
    for recipe, shares in (("fold", True), ("int8-weights", False)):
        output = tmp_path / recipe
        result = compress(bundle, output, recipe, graph="encoder.onnx")
        assert result.untouched == ["model.onnx"] and {each.graph for each in result.passes} == {"encoder.onnx"}
        for name in ("model.onnx", "shared.data"):
            assert (output / name).read_bytes() == (bundle / name).read_bytes()
        assert ("shared.data" in external_data_files(outline(output / "encoder.onnx"))) == shares
        found = in_rows(graph_outputs(output, PAIRS)["logits"])
        assert (np.abs(found - expected).max() < 1e-4) == shares
        assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    both = compress(tmp_path / "int8-weights", tmp_path / "both", "int8-weights")
    assert not (tmp_path / "both" / "shared.data").exists() and both.bytes_after < both.bytes_before


def test_unsupported_verbs_for_two_graphs_are_refused_in_one_line(make_encoder_decoder: Make, tmp_path: Path) -> None:
    _, bundle = make_encoder_decoder("t5")
    (tmp_path / "text").write_text("A text.\n")
    with pytest.raises(UsageError, match="is an encoder-decoder"):
        compress(bundle, tmp_path / "out", "gptq", calibration=tmp_path / "text")
    with pytest.raises(UsageError, match="compared with the source model when they were exported"):
        validate(bundle)


def test_cpu_engine_gives_the_same_logits(make_encoder_decoder: Make, tmp_path: Path) -> None:
    _, bundle = make_encoder_decoder("t5")
    copy = Path(shutil.copytree(bundle, tmp_path / "built"))
    decoder_file, encoder_file = (engine.path for engine in build(copy, "ort-cpu").engines)
    assert (decoder_file, encoder_file) == ("engines/ort-cpu.onnx", "engines/ort-cpu-encoder.onnx")
    opened = Bundle.open(copy)
    assert [stored_engine(opened, "ort-cpu", graph.file) for graph in opened.manifest.graphs] == [
        copy / decoder_file,
        copy / encoder_file,
    ]
    decoder, source = opened.manifest.decoder, PAIRS[0].source
    assert decoder is not None
    logits = []
    for reader, writer in (
        (bundle / "encoder.onnx", bundle / "model.onnx"),
        (copy / encoder_file, copy / decoder_file),
    ):
        with open_engine(reader) as engine:
            crossed = engine.run({"source_ids": np.array([source]), "source_mask": np.ones((1, len(source)), np.bool_)})
        with open_engine(writer) as engine:
            logits.append(branches(engine, decoder, crossed, start=3))
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)


BUILDS = [*((family, ("t4", "a100")) for family in FAMILIES), ("mt5", ("t4",))]


@pytest.mark.proof
@pytest.mark.parametrize(("family", "gpus"), few(BUILDS, BUILDS[-1:]))  # test_operators builds for both
def test_both_graphs_build_for_each_gpu(
    make_encoder_decoder: Make, tmp_path: Path, family: str, gpus: Sequence[str]
) -> None:
    pytest.importorskip("tensorrt_rtx")
    checkpoint, _ = make_encoder_decoder(family, d_kv=16)  # TensorRT-RTX 1.7 fails at heads of 12 values
    bundle = tmp_path / "bundle"
    export(str(checkpoint), bundle, dtype="float16")
    lengths = {"capacity": "48", "source": "1:16:40"}
    engines = build(bundle, "tensorrt-rtx", gpus, axes=lengths).engines
    assert [(engine.graph, engine.path, engine.sm) for engine in engines] == [
        (graph, f"engines/tensorrt-rtx-{gpu}{suffix}.engine", {"t4": 75, "a100": 80}[gpu])
        for graph, suffix in (("model.onnx", ""), ("encoder.onnx", "-encoder"))
        for gpu in gpus
    ]
    assert all(engine.profiles["source_mask"] == {"min": [1, 1], "opt": [1, 16], "max": [8, 40]} for engine in engines)
    opened = Bundle.open(bundle)
    assert opened.manifest.engines == engines
    for engine in engines:
        assert select(opened, "tensorrt-rtx", Gpu("any", engine.sm or 0), engine.graph) == engine
    with pytest.raises(UsageError, match=r"axis sauce: the bundle's inputs have .*source"):
        build(bundle, "tensorrt-rtx", ["t4"], axes={"sauce": "1"}, force=True)


def test_sums_beyond_float16_stay_exact(make_encoder_decoder: Make, tmp_path: Path) -> None:
    """The feed-forward layers of a trained T5 exceed 65504."""
    from safetensors.numpy import load_file, save_file

    checkpoint, _ = make_encoder_decoder("t5")
    large = Path(shutil.copytree(checkpoint, tmp_path / "large"))
    weights = load_file(large / "model.safetensors")
    for name in weights:
        if name.endswith((".wi.weight", ".wo.weight")):
            weights[name] = weights[name] * np.float32(1000)
    save_file(weights, large / "model.safetensors", {"format": "pt"})
    bundle = tmp_path / "bundle"
    assert export(str(large), bundle, dtype="float16").passed
    encoder = Bundle.open(bundle).manifest.encoder
    assert encoder is not None
    value = encoder.layers["encoder.block.0.layer.1.DenseReluDense.wo"]
    feeds = {"source_ids": np.array([PAIRS[0].source]), "source_mask": np.ones((1, len(PAIRS[0].source)), np.bool_)}
    with expose_values(bundle / "encoder.onnx", [value]) as path, open_engine(path) as engine:
        assert np.abs(engine.run(feeds)[value]).max() > np.finfo(np.float16).max


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "distance": ({"relative_attention_max_distance": 4}, "relative_attention_max_distance 4 is not above half of"),
    "buckets": ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets is 2, expected"),
    "activation": ({"dense_act_fn": "tanh"}, "activation 'tanh': expected one of"),
    "more layers": ({"num_decoder_layers": 3}, r"weights are missing .*decoder\.block\.2\."),
    "fewer layers": (
        {"num_layers": 2},
        r"weights belong to layers beyond those in config\.json .*encoder\.block\.2",
    ),
    "head": ({"d_kv": 16}, r"weights are missing or do not have the shape .*SelfAttention\.q\.weight \(got \[48, 32\]"),
    "width": ({"hidden_size": [1]}, r"hidden_size is '\[1\]', expected a number"),
    "layers": ({"num_layers": "many"}, r"num_layers is 'many', expected a number"),
    "start": ({"decoder_start_token_id": 5000}, "decoder_start_token_id is 5000, the vocabulary has"),
}


@pytest.mark.parametrize("bad", BAD)
def test_invalid_configuration_is_refused_in_one_line(
    make_encoder_decoder: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: str
) -> None:
    options, message = BAD[bad]
    checkpoint, _ = make_encoder_decoder("t5")
    folder = Path(shutil.copytree(checkpoint, tmp_path / "bad"))
    (folder / "generation_config.json").unlink()
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **options}))
    capfd.readouterr()
    with pytest.raises(SourceError, match=message) as caught:
        export(str(folder), tmp_path / "bundle", check=False)
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "bundle").exists()
