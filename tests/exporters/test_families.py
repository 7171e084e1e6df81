"""Every supported architecture, exported from a random checkpoint and compared with transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intaglio.bundle import Bundle
from intaglio.exporters import export
from intaglio.exporters.family import families
from intaglio.runtime import open_engine
from intaglio.runtime.tokenizer import Tokenizer

TEXTS = ["a", "the quick brown fox, 12.5", "x" * 40]
ARCHITECTURES = [name for family in families().values() for name in family.architectures]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_agrees_with_transformers(
    architecture: str, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import torch
    import transformers

    folder = make_checkpoint(architecture)
    result = export(str(folder), tmp_path / "bundle")
    assert result.passed
    bundle = Bundle.open(tmp_path / "bundle")
    feeds = Tokenizer.open(bundle).feeds(TEXTS)
    model = getattr(transformers, architecture).from_pretrained(folder)
    with torch.inference_mode():
        expected = model(**{name: torch.from_numpy(array) for name, array in feeds.items()})[0].numpy()
    with open_engine(tmp_path / "bundle") as engine:
        (actual,) = engine.run(feeds).values()
    real = feeds["attention_mask"] == 1
    if actual.shape[:2] == real.shape:
        actual, expected = actual[real], expected[real]
    np.testing.assert_allclose(actual, expected, atol=2e-6)
