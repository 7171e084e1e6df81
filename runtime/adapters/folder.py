"""The folder of an adapter as peft saves it: its settings, and its tensors in a .safetensors file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from intaglio.bundle.manifest import AdapterSource, Source
from intaglio.errors import SourceError, UsageError
from intaglio.files.hashes import sha256
from intaglio.files.pointers import check_downloaded
from intaglio.runtime.adapters.settings import CONFIG

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def adapter_folder(location: str | Path) -> Path:
    """The local folder, which has both files. Raises `SourceError`."""
    folder = Path(location)
    if not folder.is_dir():
        raise _not_a_folder(folder, str(location))
    check_downloaded([folder / CONFIG, folder / WEIGHTS])
    if not (folder / CONFIG).is_file():
        raise SourceError(f"adapter {folder}: no {CONFIG} in it. Give the folder that peft saved.")
    if not (folder / WEIGHTS).is_file():
        raise _without_weights(folder)
    return folder


def check_not_merged(folders: Iterable[str | Path], source: Source) -> None:
    """Raise `UsageError` for an adapter that is part of the weights already, and would be applied twice."""
    merged = source.adapter.sha256.get(WEIGHTS) if isinstance(source.adapter, AdapterSource) else None
    for location in folders if merged else ():
        if sha256(adapter_folder(location) / WEIGHTS) == merged:
            raise UsageError(f"adapter {location}: it is merged into the weights of the bundle already. Leave it out.")


def _not_a_folder(path: Path, given: str) -> SourceError:
    if path.exists():
        return SourceError(f"adapter {given}: a file, expected the folder that peft saved. Give its folder.")
    if HUB_ID.fullmatch(given):
        fix = f"If it is one of the hub, download it: hf download {given} --local-dir DIR, and give --adapter DIR."
        return SourceError(f"adapter {given}: no such folder. {fix}")
    return SourceError(f"adapter {given}: no such folder. Give the folder that peft saved.")


def _without_weights(folder: Path) -> SourceError:
    if (folder / PICKLE).is_file():
        fix = "Load it with peft and save it again with save_pretrained, which writes safetensors."
        return SourceError(f"{folder / PICKLE}: a pickle, which can run code when it is read. {fix}")
    return SourceError(f"adapter {folder}: no {WEIGHTS} in it. Download or copy the whole folder.")
