"""Every test of addresses has a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of fetched bundles."""
    monkeypatch.setenv("INTAGLIO_BUNDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
