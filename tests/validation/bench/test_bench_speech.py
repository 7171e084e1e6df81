"""`bench` of a speech recogniser: seconds of audio per second, and unsupported options."""

from __future__ import annotations

from pathlib import Path

import pytest
from speech_bundles import export_recogniser

import intaglio
from intaglio.errors import UsageError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_recogniser(tmp_path_factory.mktemp("bench") / "bundle")


def test_throughput_counts_seconds_of_audio(bundle: Path) -> None:
    result = intaglio.bench(bundle, concurrency=(2,), requests=4, rounds=1, threads=1)
    assert (result.kind, result.unit) == ("recogniser", "seconds of audio")
    (row,) = result.rows
    assert row.requests == 2  # batches
    assert row.throughput > 10  # seconds of audio in each of four recordings, in less than four seconds


def test_text_options_are_refused(bundle: Path) -> None:
    with pytest.raises(UsageError, match="--strategy"):
        intaglio.bench(bundle, strategy="sample")
    with pytest.raises(UsageError, match="--prompt-tokens"):
        intaglio.bench(bundle, prompt_tokens=(8,), requests=1)


def test_roofline_names_an_alternative(bundle: Path) -> None:
    with pytest.raises(UsageError, match="intaglio bench"):
        intaglio.roofline(bundle)
