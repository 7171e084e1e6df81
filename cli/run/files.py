"""`intaglio run` of a bundle that takes files: what its manifest records of them, and the files that are given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.errors import BundleError, UsageError

if TYPE_CHECKING:
    from intaglio.bundle.modality_record import ModalityRecord


def record_of(bundle: Path) -> ModalityRecord | None:
    """What a bundle records of the files that it takes; None for texts, and for one that cannot be read."""
    from intaglio.bundle.manifest_reading import read_manifest

    try:
        return read_manifest(bundle).modality_record
    except BundleError:  # reported when it is opened
        return None


def files_given(record: ModalityRecord, given: tuple[str, ...], file: Path | None) -> list[str]:
    """The files given as arguments, or those that --input names. Raises `UsageError` for neither and both."""
    from intaglio.runtime.modalities.table import MODALITIES

    if bool(given) == bool(file):
        got = "both" if given else "neither"
        raise UsageError(f"{record.items} are given as arguments or by --input, got {got}. Give one of the two.")
    found = MODALITIES[record.modality].files
    assert found is not None, "a modality with a record takes files"
    return list(given) or [str(path) for path in found(file or Path(), "--input")]
