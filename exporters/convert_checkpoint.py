"""The verb `convert`: a checkpoint in another format to one that `export` reads."""

from __future__ import annotations

import time
from pathlib import Path

from intaglio.errors import SourceError, UsageError
from intaglio.exporters.checkpoints import hub
from intaglio.exporters.checkpoints.adapters import adapter_alone
from intaglio.exporters.checkpoints.checkpoint import CONFIG
from intaglio.exporters.checkpoints.contents import is_program, refuse_file, refuse_folder
from intaglio.exporters.checkpoints.converted import Converted
from intaglio.exporters.pickled import INDEX, convert_pickled, open_pickled
from intaglio.exporters.speech.convert_recogniser import HAMA, NEMO, convert_recogniser
from intaglio.exporters.squeezellm_file import SUFFIX, Squeezed, convert_squeezed, open_squeezed
from intaglio.files.atomic import atomic_directory, check_output_directory
from intaglio.files.pointers import check_downloaded

EXPECTED = (
    f"expected a {NEMO} archive, a {HAMA} container, a {SUFFIX} file of SqueezeLLM, or a checkpoint with "
    "pytorch_model.bin"
)


def convert(source: str | Path, output: str | Path, force: bool = False, base: str | Path | None = None) -> Converted:
    """Convert `source` to the checkpoint folder `output`.

    `source` is a folder or a hub id whose weights are in pytorch_model.bin, a .pt file of SqueezeLLM, an archive of
    NeMo, or a container of hama. `base`: of a file of SqueezeLLM, the checkpoint that it was made from, for its
    configuration, its tokenizer and what the file lacks; by default, the folder that it is in. Pickles are read without
    running code from them. Raises `SourceError` for a file that is damaged, or a model that is not supported, and then
    leaves nothing at `output`.
    """
    start = time.perf_counter()
    path = Path(source)
    check_output_directory(Path(output), force, CONFIG)
    squeezed = _squeezed(path, None if base is None else Path(base))
    if path.suffix in (NEMO, HAMA) and path.is_file():
        check_downloaded([path])
        with atomic_directory(Path(output), force, CONFIG) as folder:
            result = convert_recogniser(path, folder)
    elif squeezed is not None:
        with atomic_directory(Path(output), force, CONFIG) as folder:
            result = convert_squeezed(squeezed, folder)
    else:
        pickled = open_pickled(_location(path, str(source)))
        with atomic_directory(Path(output), force, CONFIG) as folder:
            result = convert_pickled(pickled, folder)
    result.checkpoint, result.seconds = str(output), round(time.perf_counter() - start, 3)
    return result


def _squeezed(path: Path, base: Path | None) -> Squeezed | None:
    """The file of SqueezeLLM at `path`, if it is one. Raises `UsageError` for a base of anything else."""
    if path.suffix == SUFFIX and path.is_file():
        check_downloaded([path])
        if is_program(path):
            raise refuse_file(path)
        if (found := open_squeezed(path, base)) is not None:
            return found
    if base is not None:
        raise UsageError(f"--base is for files of SqueezeLLM ({SUFFIX}), and {path} is none. Leave it out.")
    return None


def _location(path: Path, source: str) -> str:
    """The folder or the hub id of a checkpoint; a file of its weights stands for its folder."""
    if path.is_file() and path.name.startswith("pytorch_model") and (path.suffix == ".bin" or path.name == INDEX):
        return str(path.parent)
    if path.is_file():
        raise refuse_file(path)
    if path.is_dir() and not (path / CONFIG).is_file():
        raise SourceError(f"{adapter_alone(path) or refuse_folder(path, source)} For convert: {EXPECTED}.")
    if not path.is_dir() and (path.suffix in (NEMO, HAMA) or not hub.ID.fullmatch(source)):
        raise SourceError(f"source {path}: no such file or folder, {EXPECTED}.")
    return source
