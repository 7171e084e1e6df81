"""The list of known models: what the tests proved, as the command line, the docs and the README show it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from known_models_page import PAGE, page

from intaglio import models, recipes
from intaglio.errors import UsageError

ROOT = Path(__file__).parents[2]


TESTS = {
    "generate": ["decoders/traced/test_traced_families.py"],
    "encode": ["encoders/test_traced_encoders.py"],
    "text-to-text": ["encoder_decoders/test_traced_encoder_decoders.py"],
    "images": ["vision/test_vision_models.py"],
    "image-text": ["image_text/test_image_text.py"],
    "transcribe": ["speech/traced/test_recognizers.py", "encoder_decoders/speech/test_whisper.py"],
}
TESTED = {
    "generate": {"logits", "text", "rollback", "sensitivities"},
    "encode": {"hidden states", "fill-mask", "classify", "token-classification", "question-answering"},
    "text-to-text": {"logits", "text"},
    "images": {"embedding", "classify", "texts"},
    "image-text": {"image embeddings", "logits", "text"},
    "transcribe": {"log-probabilities", "log-mel", "encoder", "logits", "transcript"},
}
LEAST = {**TESTED, "encode": {"hidden states"}, "images": {"embedding"}, "transcribe": {"transcript"}}
RECIPE = dict.fromkeys(("generate", "text-to-text", "image-text"), "rtn") | dict.fromkeys(
    ("encode", "images", "transcribe"), "int8-weights"
)


def families(task: str) -> set[str]:
    """The types that the tests of traced families export."""
    found: set[str] = set()
    for name in TESTS[task]:
        spec = importlib.util.spec_from_file_location("listed_families", ROOT / "tests" / "exporters" / name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= {*module.KINDS, *module.OTHERS}
    return found


@pytest.mark.parametrize(
    ("task", "least"),
    [("generate", 90), ("encode", 20), ("text-to-text", 8), ("images", 20), ("image-text", 2), ("transcribe", 7)],
)
def test_every_exported_family_is_listed_and_no_other(task: str, least: int) -> None:
    listed = {each.model_type for each in models().models if each.task == task}
    assert listed == families(task) and len(listed) >= least


def test_names_of_recipes_and_strategies_exist() -> None:
    names = {each.name for each in recipes().recipes}
    for each in models().models:
        assert LEAST[each.task] <= set(each.tested) <= TESTED[each.task]
        assert set(each.recipes) <= names and RECIPE[each.task] in each.recipes
        assert "ort-cpu" in each.targets


def test_page_and_readme_show_the_list() -> None:
    known = models().models
    assert PAGE.read_text(encoding="utf-8") == page(known), "run: python tests/support/source/known_models_page.py"
    counts = re.findall(
        r"(\d+) types of decoders, (\d+) of encoders, (\d+) of encoder-decoders, (\d+) of models that read images, "
        r"(\d+) that write about them and (\d+) of speech recognisers",
        (ROOT / "README.md").read_text(encoding="utf-8"),
    )
    tasks = [each.task for each in known]
    assert counts == [tuple(str(tasks.count(task)) for task in TESTS)]


def test_pattern_selects_types() -> None:
    found = models("QWEN").models
    assert {"qwen2", "qwen3", "qwen3_moe"} <= {each.model_type for each in found}
    with pytest.raises(UsageError, match=r"pattern nothing: no known type of models has it in its name"):
        models("nothing")


def test_command_line_prints_one_object_or_a_table(intaglio: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, _ = intaglio("models", "gemma", "--json")
    (line,) = printed.splitlines()
    found = json.loads(line)["models"]
    assert code == 0 and len(found) > 3 and all("gemma" in each["model_type"] for each in found)
    code, printed, _ = intaglio("models", "phi3")
    assert code == 0 and "gptq" in printed and printed.endswith("1 type of models\n")
    assert intaglio("models", "nothing")[0] == 2
