"""Graphs with an early exit: its prediction equals that of a model of the first blocks alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from drafts import save_drafts
from early_exits import exit_logits, save_early_exit
from tiny_decoders import FAMILIES, VOCABULARY

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.graph_passes import compress
from intaglio.networks.early_exit import RECORD
from intaglio.runtime.sessions.step import decoder_of
from intaglio.validation import validate

MakeDecoder = Callable[..., tuple[Path, Path]]
TEXTS = [
    [72, 101, 108, 108, 111, 32, 119, 111],
    [84, 104, 101],
    [65, 32, 99, 97, 116, 32, 115, 97, 116, 32, 111, 110, 46],
]
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    **{family: (family, {}, 1) for family in FAMILIES},
    "deeper, tied": ("llama", {"num_hidden_layers": 4, "tie_word_embeddings": True}, 3),
    "a narrow head, no last norm": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}, 1),
    "a head of its own": ("gpt2", {"tie_word_embeddings": False, "n_layer": 3}, 2),
}


@pytest.mark.parametrize("variant", few(VARIANTS, ["llama"]))
def test_both_exits_equal_the_source(make_decoder: MakeDecoder, tmp_path: Path, variant: str) -> None:
    family, options, layer = VARIANTS[variant]
    checkpoint, plain = make_decoder(family, **options)
    folder = save_early_exit(checkpoint, tmp_path / "exiting", layer)
    export(str(folder), tmp_path / "bundle", check=False)
    opened, whole = Bundle.open(tmp_path / "bundle"), Bundle.open(plain)
    decoder = decoder_of(opened)
    assert decoder.exit_layer == layer
    early = stepwise_outputs(opened.model_path, decoder, TEXTS, early=True)["exit_logits"]
    for found, expected in zip(early, exit_logits(checkpoint, layer, TEXTS), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-6 * np.abs(expected).max(), rtol=0)
    last = stepwise_outputs(opened.model_path, decoder, TEXTS)["logits"]
    unchanged = stepwise_outputs(whole.model_path, decoder_of(whole), TEXTS)["logits"]
    for found, expected in zip(last, unchanged, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", few(FAMILIES, ["llama"]))
def test_exit_stores_no_weight_twice(make_decoder: MakeDecoder, tmp_path: Path, family: str) -> None:
    checkpoint, plain = make_decoder(family)
    export(str(save_early_exit(checkpoint, tmp_path / "exiting")), tmp_path / "bundle", check=False)
    ours, theirs = (load(Bundle.open(path).model_path) for path in (tmp_path / "bundle", plain))
    assert list(ours.graph.initializers) == list(theirs.graph.initializers)


@pytest.mark.parametrize(("family", "dtype"), few([("llama", "float32"), ("qwen2", "float16")], [("llama", "float32")]))
def test_export_checks_the_exit(make_decoder: MakeDecoder, tmp_path: Path, family: str, dtype: str) -> None:
    folder = save_early_exit(make_decoder(family)[0], tmp_path / "exiting")
    result = export(str(folder), tmp_path / "bundle", dtype=dtype)
    assert result.passed and result.outputs.keys() == {"logits", "exit_logits"}
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.outputs[1].name == "exit_logits"
    assert (manifest.outputs[1].dtype, manifest.outputs[1].shape) == (
        "float32",
        ("batch", "positions_wanted", VOCABULARY),
    )
    assert RECORD in manifest.source.sha256


def test_graph_without_exit_has_no_exit_nodes(make_decoder: MakeDecoder) -> None:
    bundle = Bundle.open(make_decoder("llama")[1])
    assert decoder_of(bundle).exit_layer == 0
    assert [spec.name for spec in bundle.manifest.outputs if "present" not in spec.name] == ["logits"]
    assert sum(node.op_type == "RMSNormalization" for node in load(bundle.model_path).graph) == 2 * 2 + 1


@pytest.mark.parametrize("family", few(["opt", "llama"], ["llama"]))
def test_validation_compares_the_exit_and_every_layer(make_decoder: MakeDecoder, tmp_path: Path, family: str) -> None:
    """The final norm runs twice; both models compare its output on the last states."""
    folder = save_early_exit(make_decoder(family)[0], tmp_path / "exiting")
    export(str(folder), tmp_path / "bundle", check=False)
    result = validate(tmp_path / "bundle", bisect=True, samples=2, report=tmp_path)
    assert result.passed and result.first_layer_beyond is None and "exit_logits" in result.outputs


@pytest.mark.proof  # the scheduler's tests run compressed exits
def test_compressed_graphs_keep_the_exit(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    """The weights of the head, used by two products, are compressed and stored once."""
    wide = {"num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 128}
    folder = save_early_exit(make_decoder("llama", **wide)[0], tmp_path / "exiting")
    export(str(folder), tmp_path / "bundle", check=False)
    compress(tmp_path / "bundle", tmp_path / "four", "rtn")
    four = Bundle.open(tmp_path / "four")
    nodes = [node for node in load(four.model_path).graph if node.op_type == "GroupMatMul"]
    heads = [[value.name for value in node.inputs[1:] if value] for node in nodes if "lm_head" in str(node.name)]
    assert len(heads) == 2 and heads[0] == heads[1] and len(nodes) == 3 * 7 + 2
    [found] = stepwise_outputs(four.model_path, decoder_of(four), TEXTS[:1], early=True)["exit_logits"]
    [expected] = exit_logits(folder, 1, TEXTS[:1])
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"layer": 0}', "exit after 0 blocks, expected 1 to 1"),
        ('{"layer": 2}', "exit after 2 blocks, expected 1 to 1"),
        ('{"layer": "1"}', "cannot be read"),
        ('{"layer": "all"}', "cannot be read"),
        ('{"layer": 1.5}', "cannot be read"),
        ("{}", "cannot be read"),
    ],
)
def test_invalid_record_is_refused_in_one_line(
    make_decoder: MakeDecoder, tmp_path: Path, record: str, message: str
) -> None:
    folder = save_early_exit(make_decoder("gpt2")[0], tmp_path / "exiting")
    (folder / RECORD).write_text(record)
    with pytest.raises(SourceError, match=message) as caught:
        export(str(folder), tmp_path / "bundle")
    assert "\n" not in str(caught.value) and not (tmp_path / "bundle").exists()


def test_drafts_with_an_exit_are_refused(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    drafting = save_drafts(make_decoder("gpt2")[0], tmp_path / "drafting", "medusa")
    with pytest.raises(SourceError, match=r"has both early_exit\.json and drafts\.json"):
        export(str(save_early_exit(drafting, tmp_path / "both")), tmp_path / "bundle")
