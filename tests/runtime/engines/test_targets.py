"""The table of targets, and the additional target of docs/extending.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from intaglio.bundle.bundle import Bundle
from intaglio.errors import EngineError, UsageError
from intaglio.extras import EXTRA_OF
from intaglio.runtime import TextGenerator, build, open_engine
from intaglio.runtime.engines.engine import Array, Engine, Opening
from intaglio.runtime.engines.opening import function_at
from intaglio.runtime.sessions.step import decoder_of, empty_caches, step_feeds
from intaglio.targets import TARGETS, Target, find_target, summary
from intaglio.validation import validate


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_functions_of_the_table_exist(target: Target) -> None:
    assert callable(function_at(target.opens))
    assert target.builds is None or callable(function_at(target.builds))
    assert f"{target.name} ({target.summary})" in summary()


def test_missing_library_error_names_the_targets_extra() -> None:
    """The error of ort-cuda names its own extra: `import onnxruntime` fails for either package."""
    extras = {target.name: EXTRA_OF[target.library] for target in TARGETS.values()}
    assert extras == {target.name: target.extra for target in TARGETS.values()} | {"ort-cuda": "cpu"}


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="target 'abacus': expected one of ort-cpu, ort-cuda, tensorrt, tensorrt-rtx, x"
    ):
        find_target("abacus", ["x"])


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target of the page: its module, and its row."""
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
    chapter = page.split("## A target")[1]
    module = ModuleType("intaglio.runtime.engines.reference_engine")
    given = (Array, Bundle, Engine, Mapping, Opening, Path, ReferenceEvaluator, Target)
    vars(module).update({each.__name__: each for each in given if hasattr(each, "__name__")}, Array=Array, onnx=onnx)
    exec("from __future__ import annotations\n" + chapter.split("```python\n")[1].split("```")[0], vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = "\n".join(line.removeprefix("+") for line in chapter.split("```diff\n")[1].split("```")[0].splitlines())
    target = eval(row.strip().removesuffix(","), {"Target": Target})  # noqa: S307
    monkeypatch.setitem(TARGETS, target.name, target)


@pytest.mark.usefixtures("documented")
def test_documented_target_runs_a_decoder(tiny_decoder: Path) -> None:
    bundle = Bundle.open(tiny_decoder)
    feeds = step_feeds(decoder_of(bundle), np.array([[1, 2, 3]]), capacity=8)
    feeds |= empty_caches(bundle.manifest.inputs, 1, 8)
    with open_engine(bundle) as ours, open_engine(tiny_decoder, "onnx-reference") as theirs:
        np.testing.assert_allclose(theirs.run(feeds)["logits"], ours.run(feeds)["logits"], atol=1e-3)
    texts = []
    for target in ("ort-cpu", "onnx-reference"):
        with TextGenerator(tiny_decoder, target=target, max_new_tokens=8, ignore_eos=True) as generator:
            texts.append(generator.write("abc").whole().tokens)
    assert texts[0] == texts[1]
    with pytest.raises(UsageError, match="target onnx-reference: it runs graphs unchanged, there is nothing to build"):
        build(tiny_decoder, "onnx-reference")


@pytest.mark.usefixtures("documented", "no_cuda_device")
def test_documented_target_is_offered_without_a_gpu(tiny_bundle: Path) -> None:
    with pytest.raises(EngineError, match=r"no CUDA device\. Use --target ort-cpu or onnx-reference, which needs none"):
        open_engine(tiny_bundle, "tensorrt")


@pytest.mark.usefixtures("documented")
def test_documented_target_is_validated(tiny_bundle_copy: Path) -> None:
    assert validate(tiny_bundle_copy, target="onnx-reference").passed
