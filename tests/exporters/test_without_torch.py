"""Without PyTorch: errors name the extra to install and an alternative that needs no PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def no_torch(tiny_bundle: Path, tiny_decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on `import torch` fails, as if it was not installed; the bundles were exported with it."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize("name", ["tiny_bundle", "tiny_decoder"])
def test_source_comparison_names_the_extra_and_an_alternative(
    name: str, intaglio: Run, no_torch: None, request: pytest.FixtureRequest
) -> None:
    code, out, err = intaglio("validate", request.getfixturevalue(name))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("intaglio: torch cannot be imported")
    assert "pip install 'intaglio[export]'" in line
    assert line.endswith("or compare without PyTorch: --against reference, or --against BUNDLE.")


def test_reference_comparison_needs_no_torch(intaglio: Run, no_torch: None, tiny_bundle_copy: Path) -> None:
    code, out, err = intaglio("validate", tiny_bundle_copy, "--against", "reference", "--samples", 4)
    assert (code, err) == (0, "")
    assert "Passed." in out


def test_exporting_names_the_extra(intaglio: Run, no_torch: None, tiny_checkpoint: Path, tmp_path: Path) -> None:
    code, _, err = intaglio("export", tiny_checkpoint, "-o", tmp_path / "bundle")
    assert code == 2
    assert "pip install 'intaglio[export]'" in err.splitlines()[-1]
