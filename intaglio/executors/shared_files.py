"""Files that workers read themselves: they have the same path on all machines, such as on NFS."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError


@dataclass(frozen=True)
class SharedPath:
    """A path as an argument of a task."""

    path: Path  # as the user gave it
    folder: Path  # the working directory of the program, which a relative path starts from

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """The path of a file or folder."""
        return cls(Path(path), Path.cwd())

    def here(self) -> Path:
        """The path in this process: where it works in the same directory, as given, so that messages are the same."""
        return self.path if self.folder == Path.cwd() else self.folder / self.path


@dataclass(frozen=True)
class SharedBundle:
    """A bundle as an argument of a task."""

    path: SharedPath
    digest: str  # of its files

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        """The path and the digest of an open bundle."""
        return cls(SharedPath.of(bundle.path), _digest(bundle))

    def open(self) -> Bundle:
        """Open it in this process. Raises `BundleError` if this machine has another one at its path."""
        opened = Bundle.open(self.path.here())
        if _digest(opened) != self.digest:
            raise BundleError(
                f"bundle {opened.path}: on {platform.node()} it is another one. Use storage that all machines share."
            )
        return opened


def _digest(bundle: Bundle) -> str:
    """A hash of the names and hashes of a bundle's files, without its reports, which any `validate` may add."""
    files = bundle.manifest.files.items()
    kept = sorted((name, record.sha256) for name, record in files if not name.startswith("reports/"))
    return hashlib.sha256(repr(kept).encode()).hexdigest()
