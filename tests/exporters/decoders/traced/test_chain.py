"""The whole way of traced decoders: exported, compressed, validated, served, drafted for, and built for two GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from served import served
from tiny_families import save_family

from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime import build, generate
from intaglio.samples.sentences import sentences
from intaglio.validation import validate

RECIPES = {"rtn": False, "gptq": True, "lut-sparse": True, "int8-weights": False, "int8-qdq": True}  # which need a text

# Random weights amplify the errors of few bits, and experts that are chosen by a hair's breadth even more.
LEAST_COSINE = {("int8-weights", model_type): 0.5 for model_type in ("gemma3_text", "phi3", "granite")}

ROUNDED = {"gpt_oss": {"relative": 0.01}}  # for the same reason


@pytest.mark.proof
@pytest.mark.parametrize("model_type", ["gemma3_text", "phi3", "granite", "gpt_oss"])
def test_every_step_works(model_type: str, tmp_path: Path, proved: Callable[..., None]) -> None:
    bundles = {}
    for name, width in (("large", 48), ("small", 32)):
        checkpoint = save_family(tmp_path / f"{name}-checkpoint", model_type, intermediate_size=width)
        bundles[name] = tmp_path / name
        assert export(str(checkpoint), bundles[name]).passed
    large = bundles["large"]

    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences()))
    for recipe, calibrated in RECIPES.items():
        smaller = tmp_path / recipe
        result = compress(large, smaller, recipe=recipe, calibration=text if calibrated else None)
        assert result.bytes_after < result.bytes_before
        outputs = validate(smaller, against=str(large)).outputs["logits"]
        assert np.isfinite(outputs.max_abs) and outputs.cosine > LEAST_COSINE.get((recipe, model_type), -1)

    greedy = [each.tokens for each in generate(large, ["A cat", "Hello wor"], max_new_tokens=30)]
    drafted = generate(large, ["A cat", "Hello wor"], max_new_tokens=30, strategy="speculative", draft=bundles["small"])
    assert [each.tokens for each in drafted] == greedy

    with served(tmp_path / "rtn") as server:
        status, answer = server.post("/v1/completions", {"model": "rtn", "prompt": "A cat", "max_tokens": 8})
        assert status == 200 and answer["usage"]["completion_tokens"] > 0

    pytest.importorskip("tensorrt_rtx")
    half = tmp_path / "half"  # a T4 has no products of float32 in TensorRT
    assert export(str(tmp_path / "large-checkpoint"), half, dtype="float16", bound=ROUNDED.get(model_type)).passed
    engines = build(half, "tensorrt-rtx", ["t4", "a100"]).engines
    assert [engine.gpu for engine in engines] == ["t4", "a100"]
    targets = ["ort-cpu", "tensorrt-rtx t4", "tensorrt-rtx a100"]
    proved(model_type, "generate", "traced", recipes=list(RECIPES), strategies=["speculative"], targets=targets)
