"""A recipe is loaded completely or refused in one line that lists the valid names."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import GraphError, UsageError
from intaglio.graph_passes.canonicalize import Canonicalize
from intaglio.graph_passes.float16 import Float16
from intaglio.graph_passes.folding.fold_batch_norm import FoldBatchNorm
from intaglio.graph_passes.folding.fold_constants import FoldConstants
from intaglio.graph_passes.folding.fold_scales import FoldScales
from intaglio.graph_passes.lookup_tables.lut import Lut
from intaglio.graph_passes.opsets.raise_opset import RaiseOpset
from intaglio.graph_passes.pass_table import PASSES
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.recipes.recipes import RECIPES
from intaglio.graph_passes.weights.gptq import Gptq
from intaglio.graph_passes.weights.rtn import Rtn


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "recipe.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_pass_names_are_the_keys_of_the_table() -> None:
    assert {name: getattr(made, "name", None) for name, made in PASSES.items()} == {name: name for name in PASSES}
    assert all(type(entry) in PASSES.values() for recipe in RECIPES for entry in load_recipe(recipe)[1])


def test_recipe_is_loaded_by_name() -> None:
    name, passes = load_recipe("float16")
    assert name == "float16"
    folding = [RaiseOpset, FoldConstants, Canonicalize, FoldBatchNorm, FoldScales]
    assert [type(entry) for entry in passes] == [*folding, Float16]
    passes.clear()
    assert load_recipe("float16")[1], "the table was given away"


def test_recipe_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        passes:
          - canonicalize
          - fold_constants:
          - raise_opset: {version: 22}
          - float16: {keep: [Softmax], keep_io: true}
        """,
    )
    assert load_recipe(path) == (
        str(path),
        [Canonicalize(), FoldConstants(), RaiseOpset(22), Float16(keep=("Softmax",), keep_io=True)],
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("passes: [fold]", "pass 1: got 'fold', expected one of raise_opset, fold_constants, canonicalize, "),
        ("passes: [canonicalize, 3]", "pass 2: got 3, expected one of"),
        ("passes: [{float16: {}, canonicalize: {}}]", "pass 1: got {"),
        ("passes: [{float16: {kept: [Softmax]}}]", "float16 has no option kept. Its options: keep, keep_io"),
        ("passes: [{canonicalize: {fast: true}}]", "canonicalize has no option fast. Its options: none"),
        ("passes: [{float16: {keep: Softmax}}]", "Expected `array`, got `str` for `keep`"),
        ("passes: [{float16: {keep_io: 1}}]", "Expected `bool`, got `int` for `keep_io`"),
        ("passes: [{raise_opset: {version: '23'}}]", "Expected `int`, got `str` for `version`"),
        ("passes: [{calibrate: {method: best}}]", "'best' for `method`. Expected one of: absmax, percentile, "),
        ("passes: [{calibrate: {bins: 1000}}]", "calibrate: bins 1000: expected a power of two"),
        ("passes: [{float16: [Softmax]}]", "float16 got ['Softmax'], expected its options with values"),
        ("passes: []", "expected the one key `passes` with a list"),
        ("passes: canonicalize", "expected the one key `passes` with a list"),
        ("[canonicalize]", "expected the one key `passes` with a list"),
        ("passes: [canonicalize]\npases: []", "expected the one key `passes` with a list"),
        ("", "expected the one key `passes` with a list"),
        ("passes: [", "not YAML"),
        ("passes: !!python/object/apply:os.getcwd []", "not YAML"),
        (b"\xff\xfe\x00passes", "not UTF-8 text but UTF-16"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_invalid_files_are_refused_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(GraphError) as error:
        load_recipe(write(tmp_path, content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "passes: [2023-99-99]",
        "passes: [!!float foo]",
        f"passes: [{'9' * 5000}]",
        "passes: [!!python/object/apply:os.system [id]]",
        "a: &a [x, x, x, x, x, x, x, x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 8)}]\n" for n in range(9))
        + "passes: [*j]\n",
        "passes:\n  - float16: &a [&b [x, x, x, x], *b, *b]\n",
        "x" * 100_000,
        "passes: [!!int '']",
        "passes: [!!float '']",
        "passes: [!!bool x]",
        "x: &x {a: 1}\n"
        + "".join(f"{n}: &n{n}\n  <<: [{', '.join(['*x' if n == 0 else f'*n{n - 1}'] * 20)}]\n" for n in range(20))
        + "passes: []\n",
        "passes:\n" + "- canonicalize\n" * 4000,
    ],
    ids=[
        "date",
        "float",
        "integer",
        "object",
        "bomb",
        "aliases",
        "size",
        "no int",
        "no float",
        "bool",
        "merges",
        "many",
    ],
)
def test_untrusted_files_are_refused_quickly_in_one_short_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    with pytest.raises(GraphError) as raised:
        load_recipe(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_unknown_recipes_list_the_known_ones() -> None:
    known = ", ".join(RECIPES)
    with pytest.raises(GraphError, match=f"recipe 'int9': expected one of {known}, or the path of a YAML"):
        load_recipe("int9")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"none\.yaml: No such file"):
        load_recipe(tmp_path / "none.yaml")


def test_documentation_shows_the_recipe_int8_only(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "integer-only.md").read_text()
    (block,) = re.findall(r" *```yaml\n( *passes:.*?) *```", page, re.DOTALL)
    _, passes = load_recipe(write(tmp_path, textwrap.dedent(block)))
    usual = load_recipe("int8-only")[1]
    assert list(map(type, passes)) == list(map(type, usual))
    changed = [each for each, before in zip(passes, usual, strict=True) if each != before]
    assert [each.name for each in changed] == ["equalize"]


def test_recipe_options_apply_to_the_passes_that_have_them(tmp_path: Path) -> None:
    _, passes = load_recipe("gptq", {"bits": 3, "group_size": 64})
    assert passes == [*load_recipe("canonical")[1], Gptq(bits=3, group_size=64)]
    assert load_recipe("gptq", {"bits": None, "group_size": None})[1] == load_recipe("gptq")[1]
    path = write(tmp_path, "passes: [{rtn: {skip: ['*.mlp.*']}}, canonicalize, {lut: {bits: 2, skip: [lm_head]}}]")
    rtn, _, lut = load_recipe(path, {"bits": 3, "group_size": 64})[1]
    assert rtn == Rtn(bits=3, group_size=64, skip=("*.mlp.*",)) and lut == Lut(bits=3, skip=("lm_head",))


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (
            "mixed",
            {"bits": 3},
            "--bits 3: no pass of recipe mixed has this option. Recipes that do: lut, lut-sparse, rtn,",
        ),
        (
            "lut",
            {"group_size": 64},
            "--group-size 64: no pass of recipe lut has this option. Recipes that do: rtn, gptq,",
        ),
        ("float16", {"bits": 8, "group_size": None}, "--bits 8: no pass of recipe float16 has this option."),
    ],
)
def test_unsupported_option_names_the_recipes_that_support_it(
    recipe: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        load_recipe(recipe, options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("lut", {"bits": 8}, "lut: bits 8: expected one of 2, 3, 4."),
        ("awq", {"group_size": 48}, "awq: group_size 48: expected a multiple of 32, or 0 for whole rows."),
    ],
)
def test_option_values_are_checked_like_those_of_a_file(recipe: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError) as raised:
        load_recipe(recipe, options)
    assert str(raised.value) == message
