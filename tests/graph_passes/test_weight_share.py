"""Recipes report the share of weights that they compressed; a model that is hardly compressed gives a warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.cli import cli
from intaglio.graph_passes import compress
from intaglio.graph_passes.weight_share import WeightShare, weight_share
from intaglio.training.gradients.sensitivity import sensitivity

TEXT = "The quick brown fox jumps over the lazy dog; sphinx of black quartz, judge my vow.\n" * 12
BLOCKS = 2 * (96 + 32 + 2 * 128) * 32  # elements of a tiny GPT-2's linear layers
TIED, POSITIONS = 272 * 32, 64 * 32


@pytest.fixture(scope="module")
def folder(tiny_decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and the sensitivities of `tiny_decoder` on it."""
    folder = tmp_path_factory.mktemp("share")
    (folder / "text.txt").write_text(TEXT)
    sensitivity(tiny_decoder, folder / "sensitivity", folder / "text.txt", samples=2, tokens=64)
    return folder


def share_of(bundle: Path) -> WeightShare:
    return weight_share(load(Bundle.open(bundle).model_path))


def number(share: WeightShare) -> int:
    return share.layers + share.tables + sum(weight.elements for weight in share.left)


@pytest.mark.parametrize(
    "recipe", ["rtn", "int8-absmax", "int8-zeropoint", "int8-weights", "gptq", "awq", "lut", "lut-sparse"]
)
def test_every_decoder_recipe_reports_the_compressed_share(
    recipe: str, tiny_decoder: Path, folder: Path, tmp_path: Path
) -> None:
    by_sensitivity = recipe.startswith("lut")
    observing = by_sensitivity or recipe in ("gptq", "awq")
    done = compress(
        tiny_decoder, tmp_path / "out", recipe,
        calibration=folder / "text.txt" if observing else None,
        sensitivity=folder / "sensitivity" if by_sensitivity else None,
    )  # fmt: skip
    positions = [] if recipe == "int8-weights" else [("transformer.wpe", "table", POSITIONS)]  # also compresses tables
    compressed = BLOCKS if positions else BLOCKS + POSITIONS
    assert done.share_compressed == compressed / (BLOCKS + TIED + POSITIONS)
    assert done.left_unasked == TIED / (BLOCKS + TIED)
    assert [(weight.name, weight.kind, weight.elements) for weight in done.left] == [
        ("transformer.wte", "tied", TIED),
        *positions,
    ]
    assert number(share_of(tmp_path / "out")) == number(share_of(tiny_decoder)) == BLOCKS + TIED + POSITIONS


def test_weights_that_mixed_keeps_for_its_budget_give_no_warning(
    tiny_decoder: Path, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text("passes: [mixed: {bits_per_weight: 24, compensate: false, skip: ['*.wte']}]")
    done = compress(tiny_decoder, tmp_path / "out", tmp_path / "r.yaml", sensitivity=folder / "sensitivity")
    layers = [weight for weight in done.left if weight.kind == "layer"]
    assert layers and all(weight.asked for weight in layers)
    assert done.left_unasked == 0 and 0 < done.share_compressed < 1


@pytest.mark.parametrize(("recipe", "observing"), [("int8-only", True), ("int8-qdq", True), ("int8-weights", False)])
def test_every_encoder_recipe_reports_the_compressed_share(
    recipe: str, observing: bool, tiny_bundle: Path, folder: Path, tmp_path: Path
) -> None:
    done = compress(tiny_bundle, tmp_path / "out", recipe, calibration=folder / "text.txt" if observing else None)
    before, after = share_of(tiny_bundle), share_of(tmp_path / "out")
    table = sum(weight.elements for weight in before.left if weight.kind == "table")
    layers = sum(weight.elements for weight in before.left if weight.kind == "layer")
    assert (after.layers, after.tables) == (layers, table)
    assert (done.share_compressed, done.left_unasked, done.left) == (1, 0, [])


@pytest.mark.parametrize("recipe", ["canonical", "float16", "h-gelu", "prune-magnitude", "inlined"])
def test_recipes_without_weight_compression_report_no_share(recipe: str, tiny_bundle: Path, tmp_path: Path) -> None:
    done = compress(tiny_bundle, tmp_path / "out", recipe)
    assert done.share_compressed is None and done.left_unasked is None and done.left == []


def test_copy_and_table_of_a_tied_head_both_count(tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("passes: [rtn: {tied: true}]")
    done = compress(tiny_decoder, tmp_path / "out", tmp_path / "r.yaml")
    assert done.share_compressed == (BLOCKS + TIED) / (BLOCKS + 2 * TIED + POSITIONS)
    assert [weight.kind for weight in done.left] == ["table", "table"] and done.left_unasked == 0


def test_inlined_operators_count_as_compressed(tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("passes: [rtn, inline]")
    done = compress(tiny_decoder, tmp_path / "out", tmp_path / "r.yaml")
    assert done.share_compressed == BLOCKS / (BLOCKS + TIED + POSITIONS)


# --- output of the command --------------------------------------------------------------------------------------------


def run(bundle: Path, folder: Path, *arguments: str) -> Result:
    command = ["compress", str(bundle), "-o", str(folder / "out"), *arguments]
    return CliRunner().invoke(cli, command, catch_exceptions=False)


def test_uncompressed_model_is_reported(make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    bundle = make_decoder("llama", hidden_size=40, intermediate_size=64)[1]  # only down_proj has rows of 32·n
    done = run(bundle, tmp_path, "--recipe", "rtn", "--json")
    result = json.loads(done.stdout)
    assert done.exit_code == 0 and result["share_compressed"] < 0.3
    assert result["left"][0] == {"name": "lm_head", "elements": 272 * 40, "kind": "layer", "asked": False}
    (line,) = done.stderr.splitlines()
    assert (
        line.startswith("warning: recipe rtn left ") and "of the weights of linear layers uncompressed: lm_head" in line
    )
    assert line.endswith(" more.")


def test_skipped_tied_head_is_named_with_the_option_to_include_it(tiny_decoder: Path, tmp_path: Path) -> None:
    done = run(tiny_decoder, tmp_path, "--recipe", "rtn")
    left = "transformer.wte (tied to the embeddings), transformer.wpe (a table)"
    assert f"69.6 % of the weights are compressed; left: {left}" in done.stdout.splitlines()
    assert done.stderr == (
        "warning: recipe rtn left 26.2 % of the weights of linear layers uncompressed: transformer.wte (tied to the "
        "embeddings). To compress a copy of a tied weight, set tied: true in a recipe file.\n"
    )


def test_requested_skips_give_no_warning(tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("passes: [rtn: {skip: ['*.wte', '*.mlp.*']}]")
    done = run(tiny_decoder, tmp_path, "--recipe", str(tmp_path / "r.yaml"))
    assert done.stderr == ""
    line = next(line for line in done.stdout.splitlines() if "of the weights are compressed" in line)
    assert line.startswith("23.2 % ") and "transformer.wte (as asked)" in line
