"""Graphs with drafts: their predictions equal those of the source model's blocks on the pseudo states."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from drafts import LAYERS, TEXTS, assert_expected_drafts, save_drafts
from tiny_decoders import FAMILIES, VOCABULARY

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.graph_passes import compress
from intaglio.networks.drafts import MATRICES
from intaglio.runtime import build
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.sessions.step import decoder_of, empty_caches, step_feeds
from intaglio.training.gradients.sensitivity import sensitivity
from intaglio.validation import validate

MakeDecoder = Callable[..., tuple[Path, Path]]
KINDS = ("hidden-transfer", "medusa")


@pytest.mark.parametrize(
    ("family", "kind"), few(itertools.product(FAMILIES, KINDS), [("llama", KINDS[1]), ("llama", KINDS[0])])
)
def test_drafts_equal_those_of_the_reference_blocks(
    make_decoder: MakeDecoder, tmp_path: Path, family: str, kind: str
) -> None:
    folder = save_drafts(make_decoder(family)[0], tmp_path / "drafting", kind)
    export(str(folder), tmp_path / "bundle", check=False)
    assert_expected_drafts(folder, tmp_path / "bundle", relative=3e-6)


VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], int]] = {
    "narrow head, one step": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}, (1,), 32),
    "scaled rotations": (
        "llama",
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0,
                             "original_max_position_embeddings": 16}},
        (0, 0, 1, 1),
        32,
    ),
    "a window shorter than the drafts": ("mistral", {"sliding_window": 2}, LAYERS, 32),
    "wide heads": ("llama", {"head_dim": 12, "tie_word_embeddings": True}, (1, 1), 32),
}  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_equal_the_reference_for_other_shapes(make_decoder: MakeDecoder, tmp_path: Path, variant: str) -> None:
    family, options, layers, width = VARIANTS[variant]
    folder = save_drafts(make_decoder(family, **options)[0], tmp_path / "drafting", KINDS[0], layers, width)
    export(str(folder), tmp_path / "bundle", check=False)
    assert_expected_drafts(folder, tmp_path / "bundle", relative=3e-6)


@pytest.mark.parametrize(
    ("family", "kind", "dtype"),
    few(
        [("llama", KINDS[0], "float32"), ("gpt2", KINDS[0], "float16"), ("opt", KINDS[1], "float32")],
        [("llama", KINDS[0], "float32")],
    ),
)
def test_export_checks_the_drafts(
    make_decoder: MakeDecoder, tmp_path: Path, family: str, kind: str, dtype: str
) -> None:
    folder = save_drafts(make_decoder(family)[0], tmp_path / "drafting", kind)
    result = export(str(folder), tmp_path / "bundle", dtype=dtype)
    assert result.passed and result.outputs.keys() == {"logits", "draft_logits"}
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.decoder is not None and (manifest.decoder.drafts, manifest.decoder.draft_kind) == (3, kind)
    assert manifest.outputs[1].shape == ("batch", "drafting", 3, VOCABULARY)
    assert {MATRICES, "drafts.json"} <= manifest.source.sha256.keys()


def test_graph_without_drafts_has_no_draft_nodes(make_decoder: MakeDecoder) -> None:
    manifest = Bundle.open(make_decoder("llama")[1]).manifest
    assert "drafting" not in manifest.axes and not any("draft" in spec.name for spec in manifest.inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_drafting_after_selected_tokens_equals_drafting_after_all(
    make_decoder: MakeDecoder, tmp_path: Path, kind: str
) -> None:
    folder = save_drafts(make_decoder("llama")[0], tmp_path / "drafting", kind)
    export(str(folder), tmp_path / "bundle", check=False)
    bundle = Bundle.open(tmp_path / "bundle")
    decoder, ids = decoder_of(bundle), np.array([TEXTS[2], TEXTS[2][::-1]])
    stepwise = stepwise_outputs(bundle.model_path, decoder, ids.tolist())["draft_logits"]
    chosen = np.array([[4, 0, 12], [7, 7, 1]])
    feeds = step_feeds(decoder, ids, capacity=40, draft_indices=chosen) | empty_caches(bundle.manifest.inputs, 2, 40)
    with OnnxRuntimeEngine(bundle) as engine:
        found = engine.run(feeds)["draft_logits"]
    for row, drafts, places in zip(found, stepwise, chosen, strict=True):
        np.testing.assert_allclose(row, drafts[places], atol=1e-4, rtol=0)


def test_validation_compares_drafts_and_their_layers(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    folder = save_drafts(make_decoder("llama")[0], tmp_path / "drafting", KINDS[0])
    export(str(folder), tmp_path / "bundle", check=False)
    assert "drafts.2" in Bundle.open(tmp_path / "bundle").manifest.layers
    result = validate(tmp_path / "bundle", bisect=True, samples=2, report=tmp_path)
    assert result.passed and result.first_layer_beyond is None and "draft_logits" in result.outputs


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_compressed_graphs_draft(make_decoder: MakeDecoder, language_models: Path, tmp_path: Path, kind: str) -> None:
    folder = save_drafts(make_decoder("llama")[0], tmp_path / "drafting", kind)
    export(str(folder), tmp_path / "bundle", check=False)
    (tmp_path / "text.txt").write_text((language_models / "calibration.txt").read_text()[:2000])
    sensitivity(tmp_path / "bundle", tmp_path / "weights", tmp_path / "text.txt", tokens=64)
    options = {"calibration": tmp_path / "text.txt", "sensitivity": tmp_path / "weights"}
    compress(tmp_path / "bundle", tmp_path / "lut", "lut", **options)
    lut = Bundle.open(tmp_path / "lut")
    names = [node.name or "" for node in load(lut.model_path).graph if node.op_type == "LutMatMul"]
    assert sum("drafts." in name for name in names) == 3
    [drafts] = stepwise_outputs(lut.model_path, decoder_of(lut), TEXTS[:1])["draft_logits"]
    assert drafts.shape == (8, 3, VOCABULARY) and np.isfinite(drafts).all()


BUILT = [("gpt2", KINDS[0]), ("mistral", KINDS[0]), ("llama", KINDS[1])]


@pytest.mark.proof
@pytest.mark.parametrize(("family", "kind"), BUILT)
def test_float16_graph_with_drafts_builds_for_t4(
    make_decoder: MakeDecoder, tmp_path: Path, family: str, kind: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    folder = save_drafts(make_decoder(family)[0], tmp_path / "drafting", kind)
    export(str(folder), tmp_path / "bundle", dtype="float16", check=False)
    [engine] = build(tmp_path / "bundle", "tensorrt-rtx", ["t4"], axes={"capacity": "48", "drafting": "1:2:8"}).engines
    assert engine.profiles["draft_indices"]["max"][1] == 8
    if kind == KINDS[0]:
        assert engine.profiles["draft_mask"]["opt"] == [1, 6, 48]


def test_wrong_matrix_shapes_print_one_line(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    folder = save_drafts(make_decoder("gpt2")[0], tmp_path / "drafting", KINDS[0], width=16)
    with pytest.raises(SourceError, match=r"drafts\.0\.weight \(got \[16, 16\], expected \[32, 32\]\)"):
        export(str(folder), tmp_path / "bundle")
    (folder / MATRICES).write_bytes((folder / MATRICES).read_bytes()[:-8])
    with pytest.raises(SourceError, match="truncated"):
        export(str(folder), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_matrices_missing_from_the_record_are_refused(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    folder = save_drafts(make_decoder("gpt2")[0], tmp_path / "drafting", "medusa")
    (folder / "drafts.json").write_text('{"kind": "medusa", "steps": 2}')
    with pytest.raises(SourceError, match=r"unexpected tensor drafts\.2\.weight: drafts\.json has 2") as caught:
        export(str(folder), tmp_path / "bundle", check=False)
    assert "\n" not in str(caught.value)
