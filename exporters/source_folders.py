"""Where this machine has the checkpoints of its bundles: a manifest records their names and hashes, not their folders.

`$XDG_CACHE_HOME/intaglio/sources/<hash of the hashes>/` has a file for each folder that a checkpoint was exported from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from intaglio.bundle.bundle import Source
from intaglio.errors import StorageError
from intaglio.files.atomic import atomic_write
from intaglio.files.hashes import cache_directory


def remember(source: Source, folder: Path) -> None:
    """Note that the checkpoint is in `folder`; failure to do so only means that it has to be named later."""
    place = str(folder.absolute())
    with contextlib.suppress(OSError, StorageError):
        notes = _notes(source)
        notes.mkdir(parents=True, exist_ok=True)
        atomic_write(notes / hashlib.sha256(place.encode()).hexdigest()[:16], place.encode())


def folder_of(source: Source) -> Path | None:
    """The folder of the checkpoint, the last one that was noted and still exists; None where none is known."""
    found = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = [(note.stat().st_mtime_ns, Path(note.read_text(encoding="utf-8"))) for note in _notes(source).iterdir()]
    return next((folder for _, folder in sorted(found, reverse=True) if folder.exists()), None)


def _notes(source: Source) -> Path:
    content = json.dumps(source.sha256, sort_keys=True).encode()
    return cache_directory() / "sources" / hashlib.sha256(content).hexdigest()
