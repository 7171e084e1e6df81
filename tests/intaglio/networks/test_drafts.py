"""The record of drafts: default layers, and invalid records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.errors import SourceError
from intaglio.networks.drafts import MATRICES, RECORD, Drafts, default_layers, layers_error, read_drafts


@given(st.integers(1, 8), st.integers(1, 100))
def test_default_layers_fit_any_model(steps: int, depth: int) -> None:
    layers = default_layers(steps, depth)
    assert layers_error(layers, steps, depth) is None
    assert layers[0] == depth // 2


def test_default_layers_span_from_half_to_eight_tenths() -> None:
    assert default_layers(3, 40) == (20, 26, 32)
    assert default_layers(3, 3) == (1, 1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"kind": "eagle", "steps": 1}', "cannot be read"),
        ('{"kind": "medusa", "steps": 0}', "steps 0, expected 1 to 64"),
        ('{"kind": "medusa", "steps": 1000000000000}', "steps 1000000000000, expected 1 to 64"),
        ('{"kind": "medusa", "steps": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "cannot be read"),
        ('{"kind": "hidden-transfer", "steps": 2, "layers": [1]}', "1 transfer layers"),
        ('{"kind": "hidden-transfer", "steps": 2, "layers": [1, 4]}', r"expected 0 to 3"),
        ('{"kind": "hidden-transfer", "steps": 2, "layers": [2, 1]}', "in ascending order"),
        ('{"kind": "medusa", "steps": 2}', rf"no {MATRICES}"),
    ],
)
def test_damaged_record_prints_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(SourceError, match=message) as raised:
        read_drafts(tmp_path, 4)
    assert "\n" not in str(raised.value)


def test_record_is_read_and_its_absence_reported(tmp_path: Path) -> None:
    assert read_drafts(tmp_path, 4) is None
    (tmp_path / RECORD).write_text('{"kind": "hidden-transfer", "steps": 2, "layers": [1, 3]}')
    (tmp_path / MATRICES).touch()
    assert read_drafts(tmp_path, 4) == Drafts("hidden-transfer", 2, (1, 3))
