"""Graphs that stop computing saturated tokens: their structure, and their support in every stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import examples, few
from drafts import save_drafts
from early_exits import save_early_exit
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import FAMILIES

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import GraphError, SourceError, UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.networks.early_exit import NEVER, RECORD
from intaglio.runtime import build
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.chunks import chunk_feeds
from intaglio.validation import validate
from intaglio.validation.roofline.work import work

MakeDecoder = Callable[..., tuple[Path, Path]]
WIDE = {"num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 128}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {"n_layer" if family == "gpt2" else "num_hidden_layers": 3}) for family in FAMILIES},
    "a narrow head, no last norm": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
}


@pytest.fixture(scope="module")
def make_saturating(make_decoder: MakeDecoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that creates a small random decoder with an exit after every block: (family) -> bundle."""

    def make(family: str, dtype: str = "float32", **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("saturating")
        checkpoint = save_early_exit(make_decoder(family, **options)[0], folder / "checkpoint", "every")
        assert export(str(checkpoint), folder / "bundle", dtype=dtype).passed
        return folder / "bundle"

    return make


@pytest.fixture(scope="module")
def wide(make_decoder: MakeDecoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with rows wide enough for compression, unchecked. Read-only."""
    folder = tmp_path_factory.mktemp("wide")
    checkpoint = save_early_exit(make_decoder("llama", **WIDE)[0], folder / "checkpoint", "every")
    export(str(checkpoint), folder / "bundle", check=False)
    return folder / "bundle"


@pytest.mark.parametrize("variant", few(VARIANTS, ["qwen3"]))
def test_graph_equals_the_source_and_can_skip_all_blocks_but_the_first(
    variant: str, make_saturating: Callable[..., Path]
) -> None:
    """Queries, attention and the products after it are in a branch; keys and values are computed and stored outside."""
    family, options = VARIANTS[variant]
    bundle = Bundle.open(make_saturating(family, **options))
    decoder = decoder_of(bundle)
    assert decoder.saturation_exits and RECORD in bundle.manifest.source.sha256
    taken, given = ({spec.name: spec for spec in specs} for specs in (bundle.manifest.inputs, bundle.manifest.outputs))
    assert (taken["exit_thresholds"].dtype, taken["exit_thresholds"].shape) == ("float32", ("batch",))
    assert (given["blocks_run"].dtype, given["blocks_run"].shape) == ("int64", ("batch", "positions_wanted"))
    graph = load(bundle.model_path).graph
    assert sum(node.op_type == "TensorScatter" for node in graph) == 2 * decoder.layers
    assert sum(node.op_type == "Attention" for node in graph) == 1
    branching = [node for node in graph if node.op_type == "If"]
    assert len(branching) == decoder.layers - 1
    for node in branching:
        inside = [each.op_type for each in node.attributes["then_branch"].as_graph()]
        products = {"gpt2": 3, "opt": 4}.get(family, 5)
        assert inside.count("Attention") == 1 and inside.count("MatMul") == products
        assert [each.op_type for each in node.attributes["else_branch"].as_graph()] == ["Identity"]


def test_each_weight_is_stored_once_under_its_usual_name(wide: Path, make_decoder: MakeDecoder) -> None:
    plain = make_decoder("llama", **WIDE)[1]
    ours, theirs = (load(Bundle.open(path).model_path).graph.initializers for path in (wide, plain))
    weights = {name for name in theirs if "." in name}
    assert len(weights) == 2 + 3 * 9 + 2 and weights == {name for name in ours if "." in name}
    assert all(np.size(ours[name].const_value.numpy()) <= 4 for name in set(ours) - weights)


def test_float16_weights_compare_states_in_float32(make_saturating: Callable[..., Path]) -> None:
    bundle = Bundle.open(make_saturating("gpt2", "float16"))
    assert {spec.name: spec.dtype for spec in bundle.manifest.inputs}["exit_thresholds"] == "float32"
    norms = [node for node in load(bundle.model_path).graph if node.op_type in ("ReduceL2", "Greater")]
    assert norms and all(value.dtype == ir.DataType.FLOAT for node in norms for value in node.inputs[:1] if value)


@pytest.fixture(scope="module")
def both(wide: Path) -> tuple[Bundle, Any, Any]:
    """A bundle, its engine, and the source model in torch."""
    from intaglio.exporters.source import load_module

    bundle = Bundle.open(wide)
    return bundle, open_engine(wide), load_module(bundle.manifest.source)


@settings(max_examples=examples(15))
@given(thresholds=st.lists(st.floats(-1.1, 1.1), min_size=2, max_size=2), seed=st.integers(0, 99))
def test_torch_and_graph_agree_for_any_thresholds(
    thresholds: list[float], seed: int, both: tuple[Bundle, Any, Any]
) -> None:
    import torch

    bundle, engine, module = both
    feeds = chunk_feeds(bundle, np.random.default_rng(seed).integers(0, 250, (2, 9)))
    assert feeds["exit_thresholds"].tolist() == [NEVER, NEVER]
    feeds["exit_thresholds"] = np.array(thresholds, np.float32)
    found = engine.run(feeds)
    with torch.inference_mode():
        logits, blocks, *_ = module(*(torch.from_numpy(feeds[spec.name]) for spec in bundle.manifest.inputs))
    assert found["blocks_run"].tolist() == blocks.tolist()
    np.testing.assert_allclose(found["logits"], logits, atol=1e-4 * np.abs(logits.numpy()).max(), rtol=0)


def test_validation_compares_every_block(make_saturating: Callable[..., Path], tmp_path: Path) -> None:
    family, options = VARIANTS["qwen3"]
    result = validate(make_saturating(family, **options), bisect=True, samples=2, report=tmp_path)
    assert result.passed and result.first_layer_beyond is None and "blocks_run" in result.outputs
    compared = json.loads(Path(result.report).with_suffix(".json").read_text())["layers"]
    assert {f"model.layers.{index}" for index in range(3)} <= {layer["layer"] for layer in compared}


def test_weights_in_branches_are_compressed_where_no_activations_are_needed(wide: Path, tmp_path: Path) -> None:
    result = compress(wide, tmp_path / "four", "rtn")
    assert result.passes[-1].counts["layers"] == 3 * 7 + 1
    assert result.bytes_after < 0.3 * result.bytes_before
    with DecoderSession.open(tmp_path / "four", threads=1) as four, DecoderSession.open(wide, threads=1) as whole:
        for session in (four, whole):
            session.exit_thresholds[:] = 0.3
        found, expected = (session.append([[5, 6, 7]], [3])[0] for session in (four, whole))
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9


def test_passes_without_branch_support_report_it(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Some text to calibrate on, which says nothing much. " * 4)
    result = compress(wide, tmp_path / "gptq", "gptq", calibration=tmp_path / "text.txt")
    reasons = [reason for reason in result.passes[-1].reasons if "is in a branch" in reason]
    assert len(reasons) == 2 * 5 and result.passes[-1].counts["layers"] == 7 + 2 * 2 + 1
    with pytest.raises(GraphError, match="Export its checkpoint with --dtype float16 instead") as caught:
        compress(wide, tmp_path / "half", "float16")
    assert "\n" not in str(caught.value)


def test_tensorrt_build_is_refused(wide: Path) -> None:
    with pytest.raises(UsageError, match=r"has an exit after every block.*Use --target ort-cpu") as caught:
        build(wide, "tensorrt-rtx", ["a100"])
    assert "\n" not in str(caught.value)


def test_sensitivity_is_refused_in_one_line(wide: Path, tmp_path: Path) -> None:
    from intaglio.training.gradients.sensitivity import sensitivity

    (tmp_path / "text.txt").write_text("Some text to look at, which says nothing much. " * 40)
    with pytest.raises(GraphError, match="Take a recipe that needs no sensitivities") as caught:
        sensitivity(wide, tmp_path / "made", tmp_path / "text.txt")
    assert "\n" not in str(caught.value)


def test_roofline_counts_nodes_in_branches(wide: Path, make_decoder: MakeDecoder) -> None:
    axes = {"batch": 1, "tokens": 1, "capacity": 64, "positions_wanted": 1}
    ours, plain = (work(load(Bundle.open(path).model_path), axes) for path in (wide, make_decoder("llama", **WIDE)[1]))
    assert plain.weight_bytes <= ours.weight_bytes < plain.weight_bytes + 2000
    assert plain.operations <= ours.operations


def test_drafts_with_exits_are_refused(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    drafting = save_drafts(make_decoder("gpt2")[0], tmp_path / "drafting", "medusa")
    with pytest.raises(SourceError, match=r"has both early_exit\.json and drafts\.json"):
        export(str(save_early_exit(drafting, tmp_path / "both", "every")), tmp_path / "bundle")
