"""Verdicts separate good compressed models from damaged ones; benchmarks/weights/verdicts.py has every recipe.

Each model gets one kind of damage, and each kind is applied to some; the proofs apply every kind to every model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from covering import few

from benchmarks.weights.damage import KINDS, damaged
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.validation import validate
from intaglio.validation.reports.results import Validated

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., tuple[int, str, str]]

EVERY = pytest.param(tuple(KINDS), marks=pytest.mark.proof, id="every kind")


@pytest.fixture(scope="session")
def text(language_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A piece of the held-out text."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((language_models / "held_out.txt").read_text(encoding="utf-8")[:3000], encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained T5 exported in float32. Read-only."""
    path = tmp_path_factory.mktemp("t5") / "t5"
    export(str(ROOT / "examples" / "text_to_text" / "small"), path, check=False)
    return path


def check(original: Path, recipe: str, kinds: Iterable[str], folder: Path, text: Path | None = None) -> Validated:
    """Validate the bundle that `recipe` makes of `original`, and assert that each damaged copy fails."""
    if recipe.startswith("passes"):
        (folder / "recipe.yaml").write_text(recipe)
        recipe = str(folder / "recipe.yaml")
    compress(original, folder / "compressed", recipe)
    found = validate(folder / "compressed", original, perplexity=text, samples=12, report=folder / "reports")
    assert found.passed, [str(each) for each in found.measures]
    for kind in kinds:
        bad = damaged(folder / "compressed", folder / kind, kind)
        assert not validate(bad, original, perplexity=text, samples=12, report=folder / "reports").passed, kind
    return found


LUT = "passes: [{lut: {unweighted: true, compensate: false}}]"
FOUR = "weights of 4 to 6 bits ({})"
CHANGES = {"rtn": FOUR.format("rtn"), "int8-absmax": "8-bit weights (int8_absmax)", LUT: FOUR.format("lut")}
DECODERS = [("rtn", ("indices",)), ("int8-absmax", ("scales",)), (LUT, ("table",))]
DECODER_PROOFS = [pytest.param(recipe, tuple(KINDS), marks=pytest.mark.proof) for recipe in CHANGES]


@pytest.mark.parametrize(("recipe", "kinds"), [*few(DECODERS, DECODERS[::2]), *DECODER_PROOFS])
def test_damage_to_a_compressed_decoder_fails(
    recipe: str, kinds: tuple[str, ...], trained_pair: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    found = check(trained_pair[1], recipe, kinds, tmp_path, text)
    assert found.changes == CHANGES[recipe]
    assert {each.name for each in found.measures} == {"kl_divergence", "perplexity_rise", "same_top"}


@pytest.mark.proof
@pytest.mark.parametrize("kinds", [("indices",), EVERY])
def test_damage_to_a_compressed_encoder_fails(kinds: tuple[str, ...], minilm_bundle: Path, tmp_path: Path) -> None:
    found = check(minilm_bundle, "int8-weights", kinds, tmp_path)
    assert {each.name for each in found.measures} == {"mean_cosine", "min_cosine", "rank_correlation"}
    assert not any(output.cosine_floor for output in found.outputs.values())


@pytest.mark.parametrize("kinds", [("scales",), EVERY])
def test_damage_to_a_float16_encoder_fails(kinds: tuple[str, ...], minilm_bundle: Path, tmp_path: Path) -> None:
    found = check(minilm_bundle, "float16", kinds, tmp_path)
    assert (found.measures, found.changes) == ([], "float16 arithmetic (float16)")


def test_damage_to_a_compressed_encoder_decoder_fails_without_a_file(t5: Path, tmp_path: Path) -> None:
    found = check(t5, "rtn", KINDS, tmp_path)
    assert found.judged and isinstance(found.perplexity, float)


def test_pruned_model_with_too_much_degradation_fails(
    intaglio: Run, trained_pair: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    compress(trained_pair[1], tmp_path / "pruned", "prune-rows")
    options = ("--against", trained_pair[1], "--perplexity", text, "--report", tmp_path)
    code, out, _ = intaglio("validate", tmp_path / "pruned", *options)
    assert code == 1
    assert "FAILED" in out and "parts removed, replaced or trained (prune_rows)" in out
    assert "KL divergence, nats a token" in out
    given = ("--bound", "kl_divergence=2", "--bound", "same_top=0.2", "--max-perplexity-rise", "200")
    code, out, _ = intaglio("validate", tmp_path / "pruned", *options, *given)
    assert (code, "Passed" in out) == (0, True)


def test_single_model_gets_no_verdict(
    intaglio: Run, trained_pair: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    code, out, _ = intaglio("validate", trained_pair[0], "--perplexity", text, "--report", tmp_path)
    assert code == 0
    assert "Measured, not judged" in out and "Passed" not in out


def test_logits_of_large_magnitude_pass(make_encoder_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    """The head of mT5 is not scaled: its logits are large, and so are the absolute errors of float32."""
    checkpoint, _ = make_encoder_decoder("mt5", initializer_factor=20.0)
    found = export(str(checkpoint), tmp_path / "bundle")
    assert found.passed
    assert found.outputs["logits"].limit > 1e-3
    assert not export(str(checkpoint), tmp_path / "tight", max_abs=0.0).passed
