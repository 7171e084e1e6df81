"""The settings of a checkpoint's processor: how images or recordings become the model's input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import PROCESSORS
from intaglio.files.json_object import read_json


def processor_settings(folder: Path, section: str, inputs: str) -> tuple[Path, dict[str, Any]]:
    """The file with the settings, and the settings, which processor_config.json has under `section`.

    `inputs`: a word for the error. Raises `SourceError` if there are none.
    """
    for file in (folder / name for name in reversed(PROCESSORS)):
        if not file.is_file():
            continue
        settings = read_json(file)
        found = settings.get(section) if file.name == PROCESSORS[1] else settings
        if isinstance(found, dict):
            return file, found
    raise SourceError(
        f"{folder}: no {PROCESSORS[0]}, so how {inputs} become the model's input is unknown. Copy it from the original."
    )
