"""The bundles that are deployed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.exporters import export


@pytest.fixture(scope="session")
def classifier(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random classifier of three classes. Read-only."""
    labels = {0: "bad", 1: "so so", 2: "good"}
    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1, id2label=labels)
    bundle = tmp_path_factory.mktemp("classifier") / "mood"
    export(str(folder), bundle, check=False)
    return bundle
