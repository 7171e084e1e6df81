"""The table of modalities has what the manifests' records name, and verbs for texts refuse all others."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

import intaglio
from intaglio.bundle.bundle import Manifest
from intaglio.bundle.modality_record import ModalityRecord
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.modalities.table import MODALITIES
from intaglio.runtime.text.run_texts import run as run_texts

FIELDS = typing.get_type_hints(Manifest).values()
RECORDS = [each for kind in FIELDS for each in typing.get_args(kind) if issubclass(each, ModalityRecord)]


def test_each_record_names_a_row_with_files_and_a_workload() -> None:
    assert {record.modality for record in RECORDS} == MODALITIES.keys() - {"text"}
    for record in RECORDS:
        modality = MODALITIES[record.modality]
        assert record.items and modality.files is not None and modality.workload is not None


def test_texts_are_refused_by_a_bundle_of_another_modality(recogniser: Path) -> None:
    with pytest.raises(BundleError, match=r"reads recordings, no texts\. Use: intaglio run .* RECORDINGS$"):
        list(run_texts(recogniser, ["a"]))


@pytest.mark.parametrize("option", ["query", "prompt_name", "truncate_dim"])
def test_options_of_texts_are_refused(option: str, recogniser: Path) -> None:
    given = {option: 4 if option == "truncate_dim" else "x"}
    with pytest.raises(UsageError, match=rf"--{option.replace('_', '-')} is .* the bundle takes recordings"):
        intaglio.run(recogniser, ["a.wav"], **given)
