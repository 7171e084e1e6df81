"""Workers open the same files by the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError
from intaglio.executors.shared_files import SharedBundle, SharedPath


def test_path_is_as_given_in_the_same_directory_and_complete_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shared = [SharedPath.of("file"), SharedPath.of(tmp_path / "file")]
    assert [each.here() for each in shared] == [Path("file"), tmp_path / "file"]
    monkeypatch.chdir("/")
    assert [each.here() for each in shared] == [tmp_path / "file"] * 2


def test_bundle_is_opened_by_its_path_unless_it_is_another_one(tiny_bundle_copy: Path) -> None:
    bundle = Bundle.open(tiny_bundle_copy)
    shared = SharedBundle.of(bundle)
    bundle.add_files({"reports/one.json": b"{}"})
    assert shared.open().path == tiny_bundle_copy
    with pytest.raises(BundleError, match=r"it is another one\. Use storage that all machines share"):
        SharedBundle(shared.path, "0" * 64).open()
