"""The list of known models: what the tests proved, as the command line, the docs and the README show it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from known_models_page import PAGE, page

import intaglio
from intaglio.cli import main
from intaglio.errors import UsageError

ROOT = Path(__file__).parents[2]


def families() -> set[str]:
    """The types that the parametrised test of traced families exports."""
    path = ROOT / "tests" / "exporters" / "decoders" / "traced" / "test_traced_families.py"
    spec = importlib.util.spec_from_file_location("listed_families", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {*module.KINDS, *module.OTHERS}


def test_every_exported_family_is_listed_and_no_other() -> None:
    listed = {each.model_type for each in intaglio.models().models if each.task == "generate"}
    assert listed == families() and len(listed) >= 90


def test_names_of_recipes_and_strategies_exist() -> None:
    recipes = {each.name for each in intaglio.recipes().recipes}
    for each in intaglio.models().models:
        assert {"logits", "text", "rollback", "sensitivities"} == set(each.tested)
        assert set(each.recipes) <= recipes and "rtn" in each.recipes
        assert "ort-cpu" in each.targets


def test_page_and_readme_show_the_list() -> None:
    known = intaglio.models().models
    assert PAGE.read_text(encoding="utf-8") == page(known), "run: python tests/support/source/known_models_page.py"
    counts = re.findall(r"(\d+) types of decoders", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert counts == [str(len(known))]


def test_pattern_selects_types(capsys: pytest.CaptureFixture[str]) -> None:
    found = intaglio.models("QWEN").models
    assert {"qwen2", "qwen3", "qwen3_moe"} <= {each.model_type for each in found}
    with pytest.raises(UsageError, match=r"pattern nothing: no known type of models has it in its name"):
        intaglio.models("nothing")
    with pytest.raises(SystemExit) as ended:
        main(["models", "gemma", "--json"])
    assert ended.value.code == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert all("gemma" in each["model_type"] for each in json.loads(line)["models"])
