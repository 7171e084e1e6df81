"""`intaglio recipes`: its descriptions match the passes, and its measurements match the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from intaglio import recipes
from intaglio.bundle.bundle import Bundle, Manifest, PassRecord
from intaglio.errors import UsageError
from intaglio.graph_passes.contract import Need
from intaglio.graph_passes.recipes.listing import ListedRecipe
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.recipes.measured import MEASUREMENTS, MODELS, described
from intaglio.graph_passes.recipes.recipes import RECIPES
from intaglio.validation.reports.recipe_advice import recipes_to_try

Run = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_requires_data_if_a_pass_does(name: str) -> None:
    needs = {need for each in load_recipe(name)[1] for need in each.needs}
    assert bool(RECIPES[name].needs) == bool(needs & {Need.CALIBRATION, Need.SENSITIVITY})


def test_help_and_table_fit_80_columns() -> None:
    longest = max(map(len, RECIPES))
    assert all(2 + longest + 2 + len(recipe.does) + 2 <= 78 for recipe in RECIPES.values())
    assert all(len(recipe.job) <= 36 for recipe in RECIPES.values())


def test_documentation_has_the_measurements() -> None:
    """Every row of docs/validation.md is a measurement, and every measurement of these models is a row."""
    page = (DOCS / "validation.md").read_text()
    rows = set(
        re.findall(r"^\| (\w+) \| `([\w-]+)` \| ([\d.]+) \| ([^|]+) \| (passed|FAILED) \|", page, flags=re.MULTILINE)
    )
    ours = {
        (row.model, row.recipe, f"{row.size:.2f}", described(row.measures), "passed" if row.passed else "FAILED")
        for row in MEASUREMENTS
        if row.model in ("MiniLM", "small", "large", "T5")
    }
    assert len(rows) == 53 and rows == ours


def test_chat_model_page_has_its_measurements() -> None:
    page = (DOCS / "chat-model.md").read_text()
    rows = re.findall(
        r"^\| `([\w-]+)([^`]*)`[^|]*\| \d+ MB \| ([\d.]+) \| ([+-][\d.]+) % \| .* \| (\w+) \|", page, re.M
    )
    ours = {(row.recipe, row.options): row for row in MEASUREMENTS if row.model == "SmolLM2"}
    assert len(rows) == len(ours) == 5
    for recipe, options, divergence, rise, verdict in rows:
        row = ours[recipe, options.strip()]
        assert row.passed == (verdict == "passed")
        assert float(divergence) == pytest.approx(row.measures["kl_divergence"], rel=0.02)
        assert float(rise) == pytest.approx(row.measures["perplexity_rise"], abs=0.051)


def test_every_documented_recipe_exists_and_every_recipe_is_documented() -> None:
    page = (DOCS / "reference.md").read_text()
    table = page[page.index("\n## Recipes\n") : page.index("The quality of each is in")]
    cells = re.findall(r"^\| (`[^|]+) \|", table, flags=re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    assert documented == set(RECIPES)


def test_function_lists_all_recipes_or_one(intaglio: Run) -> None:
    listed = intaglio_recipes()
    assert [each.name for each in listed] == list(RECIPES)
    (one,) = intaglio_recipes("gptq")
    assert one.needs == "text" and {row.model for row in one.measured} >= {"MiniLM", "small", "large"}
    with pytest.raises(UsageError, match=r"recipe 'gtpq': expected one of canonical, .*Did you mean 'gptq'\?"):
        intaglio_recipes("gtpq")
    code, out, err = intaglio("recipes", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert [each["name"] for each in json.loads(out)["recipes"]] == list(RECIPES)
    assert json.loads(intaglio("recipes", "gptq", "--json")[1])["recipes"] == [msgspec.to_builtins(one)]


def intaglio_recipes(name: str | None = None) -> list[ListedRecipe]:
    return recipes(name).recipes


@pytest.mark.parametrize("name", RECIPES)
def test_printed_passes_are_an_equivalent_recipe_file(name: str, intaglio: Run, tmp_path: Path) -> None:
    _, out, _ = intaglio("recipes", name)
    block = re.search(r"^passes:\n(?:  - .*\n)+", out, flags=re.MULTILINE)
    assert block is not None
    (tmp_path / "mine.yaml").write_text(block[0])
    assert load_recipe(tmp_path / "mine.yaml")[1] == load_recipe(name)[1]


def manifest(bundle: Path, task: str, *passes: str) -> Manifest:
    records = [PassRecord(name) for name in passes]
    return msgspec.structs.replace(Bundle.open(bundle).manifest, task=task, passes=records)


def test_recommended_recipes_pass_on_all_models_smallest_first(tiny_bundle: Path) -> None:
    for task in {task for model in MODELS.values() for task in model.tasks}:
        advised = recipes_to_try(manifest(tiny_bundle, task), {})
        assert advised and [each.size for each in advised] == sorted(each.size for each in advised)
        for each in advised:
            rows = [
                row for row in MEASUREMENTS
                if (row.recipe, row.options) == (each.recipe, each.options) and task in MODELS[row.model].tasks
            ]  # fmt: skip
            assert rows and all(row.passed for row in rows) and each.models == [row.model for row in rows]


def test_recipe_that_failed_on_a_model_is_not_recommended(tiny_bundle: Path) -> None:
    names = {each.recipe for each in recipes_to_try(manifest(tiny_bundle, "generate"), {}) if not each.options}
    assert {"rtn", "awq", "mixed", "prune-rows"}.isdisjoint(names) and "gptq" in names


def test_recipe_of_the_bundle_is_not_recommended(tiny_bundle: Path) -> None:
    made = manifest(tiny_bundle, "embed", "raise_opset", "fold_constants", "canonicalize", "gptq")
    assert "gptq" not in {each.recipe for each in recipes_to_try(made, {})}
    assert "gptq" in {each.recipe for each in recipes_to_try(manifest(tiny_bundle, "embed"), {})}


def test_recommendations_use_the_given_bounds(tiny_bundle: Path) -> None:
    strict = recipes_to_try(manifest(tiny_bundle, "embed"), {"min_cosine": 0.998})
    assert {each.recipe for each in strict} >= {"int8-weights", "int8-absmax"}
    assert "gptq" not in {each.recipe for each in strict}
    exact = recipes_to_try(manifest(tiny_bundle, "generate"), {"kl_divergence": 1e-9})
    assert {each.recipe for each in exact} == {"float16-weights"}  # the checkpoints are float16


def test_unknown_task_gets_no_recommendation(tiny_bundle: Path) -> None:
    assert recipes_to_try(manifest(tiny_bundle, ""), {}) == []


def test_only_a_failed_verdict_recommends_recipes(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    intaglio("compress", tiny_bundle, "-o", tmp_path / "pruned", "--recipe", "prune-magnitude")
    arguments = ("validate", tmp_path / "pruned", "--against", tiny_bundle, "--samples", "4")
    code, out, _ = intaglio(*arguments, "--max-abs", "0")
    assert code == 1 and "Recipes that passed on other models of this task" in out
    assert "  int8-only " in out and "MiniLM" in out and "  rtn " not in out
    code, out, _ = intaglio(*arguments, "--max-abs", "0", "-q")
    assert code == 1 and "Recipes" not in out
    loose = ("--bound", "mean_cosine=-1", "--bound", "min_cosine=-1", "--bound", "rank_correlation=-1")
    code, out, _ = intaglio(*arguments, *loose)
    assert code == 0 and "Recipes" not in out
