"""Where this machine has the checkpoints and adapters of its bundles: a manifest has their names and hashes alone.

`$XDG_CACHE_HOME/intaglio/sources/<hash of the hashes>/` has a file for each folder that they were exported from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from intaglio.errors import StorageError
from intaglio.files.atomic import atomic_write
from intaglio.files.hashes import cache_directory


def remember(hashes: Mapping[str, str], folder: Path) -> None:
    """Note that files with these `hashes` are in `folder`; failure to do so only means that it has to be named later.

    `hashes`: name of a file -> SHA-256, as a manifest has them of a checkpoint or an adapter.
    """
    place = str(folder.absolute())
    with contextlib.suppress(OSError, StorageError):
        notes = _notes(hashes)
        notes.mkdir(parents=True, exist_ok=True)
        atomic_write(notes / hashlib.sha256(place.encode()).hexdigest()[:16], place.encode())


def folder_of(hashes: Mapping[str, str]) -> Path | None:
    """The folder of files with these hashes, the last one that was noted and still exists; None where none is known."""
    found = []
    with contextlib.suppress(OSError):
        for note in _notes(hashes).iterdir():
            # One that another process is writing right now, or that one killed has left, hides no other.
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found.append((note.stat().st_mtime_ns, Path(note.read_text(encoding="utf-8"))))
    return next((folder for _, folder in sorted(found, reverse=True) if folder.exists()), None)


def _notes(hashes: Mapping[str, str]) -> Path:
    content = json.dumps(hashes, sort_keys=True).encode()
    return cache_directory() / "sources" / hashlib.sha256(content).hexdigest()
