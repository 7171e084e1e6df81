"""Names of files as bundles record them: without the folders of the machine that made the bundle."""

from __future__ import annotations

from pathlib import Path


def recorded_name(path: str | Path) -> str:
    """`path` as the user gave it if it is relative, else its last part."""
    return Path(path).name if Path(path).is_absolute() else str(Path(path))
