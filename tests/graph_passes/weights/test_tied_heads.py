"""Every recipe treats a head tied to the embeddings in the same way, in float32 and after float16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.bundle.bundle import PassRecord
from intaglio.graph_passes import compress
from intaglio.training.gradients.sensitivity import sensitivity

CANONICAL = "raise_opset, fold_constants, canonicalize, "
GROUPS = "{group_size: 32, tied: "
RECIPES = {
    "rtn": f"{CANONICAL}rtn: {GROUPS}",
    "gptq": f"{CANONICAL}gptq: {GROUPS}",
    "awq": f"{CANONICAL}awq: {GROUPS}",
    "lut": "lut: {tied: ",
    "lut-sparse": "lut_sparse: {tied: ",
    "mixed": "mixed: {bits_per_weight: 5.8, tied: ",  # 2 bits and the codebooks, so no layer is skipped
}
LEFT = "its weight is an embedding table too, left without tied: true"


@pytest.fixture(scope="module")
def folder(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """`bundle` with a tied head, `bundle16` converted to float16, a text, and sensitivities of `bundle`."""
    bundle = make_decoder("llama", tie_word_embeddings=True, intermediate_size=64, num_hidden_layers=1)[1]
    folder = bundle.parent
    compress(bundle, folder / "bundle16", "float16")
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog; sphinx of black quartz. " * 10)
    sensitivity(bundle, folder / "sensitivity", folder / "text.txt", samples=2, tokens=64)
    return folder


def compressed(folder: Path, bundle: str, recipe: str, tied: str, output: Path) -> PassRecord:
    """The record of the last pass of `recipe` on `bundle`."""
    file = output.parent / "recipe.yaml"
    file.write_text(f"passes: [{RECIPES[recipe]}{tied}}}]")
    by_sensitivity = recipe.startswith(("lut", "mixed"))
    result = compress(
        folder / bundle, output, file,
        calibration=None if recipe == "rtn" else folder / "text.txt",
        sensitivity=folder / "sensitivity" if by_sensitivity else None,
    )  # fmt: skip
    return result.passes[-1]


@pytest.mark.covering(1)
@pytest.mark.parametrize("bundle", ["bundle", "bundle16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_tied_head_is_skipped_with_a_reason_unless_requested(
    recipe: str, bundle: str, folder: Path, tmp_path: Path
) -> None:
    left = compressed(folder, bundle, recipe, "false", tmp_path / "left")
    taken = compressed(folder, bundle, recipe, "true", tmp_path / "taken")
    blocks = {name for name in left.layers if name.startswith("model.layers.0.")}
    assert len(blocks) == 7 and set(left.layers) == blocks
    assert [reason for reason in left.reasons if "embed" in reason] == [f"model.embed_tokens: {LEFT}"]
    assert set(taken.layers) == blocks | {"model.embed_tokens"}
    assert not any("embed" in reason for reason in taken.reasons if "rounded without factors" not in reason)
