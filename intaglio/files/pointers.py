"""Recognise pointers of Git LFS: small text files in the place of files that were not downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from intaglio.errors import SourceError

BEGIN = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
LONGEST = 1024  # bytes; the specification's limit
READ = ("*.json", "*.txt", "*.model", "*.jinja", "*/*.json")  # beside the weights, what `export` may read


def check_downloaded(paths: Iterable[Path]) -> None:
    """Raise `SourceError` if one of the files is a pointer."""
    for path in paths:
        if is_pointer(path):
            raise SourceError(
                f"{path}: a pointer of Git LFS, not the file itself, which was not downloaded. "
                f"Run in {path.parent.absolute()}: git lfs install && git lfs pull"
            )


def is_pointer(path: Path) -> bool:
    """Whether the file is a pointer; False for one that cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > LONGEST:
            return False
        return path.read_bytes().startswith(BEGIN)
    except OSError:
        return False


def configurations(folder: Path) -> list[Path]:
    """The files of a checkpoint's folder that `export` may read, except weights."""
    return sorted(path for pattern in READ for path in folder.glob(pattern))
