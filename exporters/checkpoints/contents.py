"""Describe a folder or a file that is not a checkpoint to export, and the next step."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.foreign_files import KINDS, PROGRAM, FileKind
from intaglio.files.pointers import check_downloaded

MOST = 10_000  # files of a folder that are looked at
SHOWN = 5  # names in a message


def refuse_file(path: Path) -> SourceError:
    """The error for a file that was given as the source."""
    check_downloaded([path])
    if not path.is_file():
        return SourceError(f"source {path}: neither a folder nor a regular file. Give the folder of a checkpoint.")
    folder = path.absolute().parent
    if path.suffix == ".safetensors" or path.name.endswith(".json"):
        fix = f"Give its folder: intaglio export {folder} -o BUNDLE"
        return SourceError(f"source {path}: a file of a checkpoint, or a part of one. {fix}")
    if path.name.startswith("pytorch_model") and path.suffix == ".bin":
        fix = f"Convert its folder: intaglio convert {folder} -o CHECKPOINT, and export CHECKPOINT."
        return SourceError(f"source {path}: weights in a pickle, which can run code when it is read. {fix}")
    kind = PROGRAM if is_program(path) else _kind([path.name])[0]
    if kind is None:
        return SourceError(
            f"source {path}: a file, not a directory. Give a checkpoint's folder, a hub id, or an .onnx file."
        )
    return SourceError(f"source {path}: {_say(kind, str(path), str(path), path.name)}")


def refuse_folder(folder: Path, source: str, names: Sequence[str] | None = None) -> SourceError:
    """The error for a folder without weights that can be read, by the names of its files.

    `source`: as named by the user. `names`: all files on the hub, of which `folder` got some.
    """
    names = _names(folder) if names is None else names
    kind, found = _kind(names)
    if kind and "/" not in found:
        check_downloaded([folder / found])
        kind = PROGRAM if is_program(folder / found) else kind
        return SourceError(f"{source}: {_say(kind, source, f'{source}/{found}', found)}")
    if inner := _checkpoints(names):
        return SourceError(f"{source}: no config.json in it. {_choose(source, inner)}")
    if kind:
        place = str(PurePosixPath(source, found).parent)
        return SourceError(f"{source}: {_say(kind, place, f'{source}/{found}', found)}")
    if not names:
        return SourceError(f"{source}: an empty folder. Give the folder of a checkpoint, or download it again.")
    return SourceError(f"{source}: {_lacking(names)}")


def _lacking(names: Sequence[str]) -> str:
    """The missing parts of a folder with these files, none of which is of a known kind."""
    weights = next((name for name in names if fnmatch(name, "*.safetensors")), None)
    if weights and "config.json" not in names:
        return f"no config.json beside {weights}. Copy the one of the same checkpoint there."
    if weights:
        fix = "Rename that file if it has the whole model, or download the checkpoint again."
        return f"no model.safetensors, but {weights}. {fix}"
    lacks = "no weights (model.safetensors)" if "config.json" in names else "no config.json and no weights"
    shown = ", ".join(sorted(names)[:SHOWN])
    fix = "Give the folder of a checkpoint as transformers saves it, or download the whole checkpoint."
    return f"{lacks} in it, only {shown}{'…' if names[SHOWN:] else ''}. {fix}"


def _names(folder: Path) -> list[str]:
    """The files of `folder` and of its subfolders, four levels, without hidden folders, as paths relative to it."""
    found: list[str] = []
    level = [folder]
    for _ in range(4):
        try:
            entries = [entry for place in level for entry in sorted(place.iterdir())][:MOST]
        except OSError as error:
            raise SourceError(f"{folder}: {error.strerror}. Give a folder that you may read.") from error
        found += [entry.relative_to(folder).as_posix() for entry in entries if not entry.is_dir()]
        level = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return found


def _kind(names: Sequence[str]) -> tuple[FileKind | None, str]:
    """The first kind of which there is a file, and that file's name; files of the folder itself come first."""
    for group in ([name for name in names if "/" not in name], names):
        for kind in KINDS:
            for pattern in kind.patterns:
                if found := next((name for name in group if _matches(name.lower(), pattern.lower())), None):
                    return kind, found
    return None, ""


def _matches(name: str, pattern: str) -> bool:
    """Whether a path, or its last part, matches the pattern."""
    return fnmatch(name, pattern) or fnmatch(name.rpartition("/")[2], pattern)


def _say(kind: FileKind, source: str, path: str, name: str) -> str:
    given = {"source": source, "path": path, "name": name, "folder": str(PurePosixPath(path).parent)}
    danger = ", which can run code when it is read" if "pickle" in kind.what else ""
    return f"{kind.what.format(**given)}{danger}. {kind.fix.format(**given)}"


def _checkpoints(names: Sequence[str]) -> list[str]:
    """The subfolders that have a config.json beside weights, the highest number last."""
    folders = {name.rpartition("/")[0] for name in names if name.endswith("/config.json")}
    weights = {name.rpartition("/")[0] for name in names if name.endswith((".safetensors", ".bin"))}

    def order(name: str) -> tuple[int, int, str]:
        number = re.search(r"\d+$", name)
        return -name.count("/"), int(number[0]) if number else -1, name

    return sorted(folders & weights, key=order)


def _choose(source: str, inner: Sequence[str]) -> str:
    if len(inner) == 1:
        return f"The checkpoint is in a subfolder: intaglio export {source}/{inner[0]} -o BUNDLE"
    shown = ", ".join(inner[:SHOWN])
    more = "…" if inner[SHOWN:] else ""
    return f"It has {len(inner)} checkpoints ({shown}{more}). Give one of them: {source}/{inner[-1]}"


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def is_program(path: Path) -> bool:
    """Whether the file is a program of TorchScript: an archive with code."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(fnmatch(name, "*/code/*") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False
