"""A small Whisper, exported."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_whispers import save_whisper

from intaglio import export


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint, and of its bundle."""
    folder = tmp_path_factory.mktemp("whisper")
    checkpoint = save_whisper(folder / "checkpoint")
    exported = export(str(checkpoint), folder / "bundle")
    assert exported.passed and exported.outputs["features"].max_abs < 5e-5
    assert all(each.max_abs < 2 * each.limit for each in exported.outputs.values())  # 2e-5 of the largest number
    return folder
