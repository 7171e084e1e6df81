"""Read NeMo's `.nemo` archives: a tar file with the configuration as YAML and the weights as a torch file.

Nothing is extracted to paths that the archive names, and the weights are read by torch's restricted unpickler, which
creates tensors only.
"""

from __future__ import annotations

import itertools
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.errors import SourceError, one_line
from intaglio.extras import load
from intaglio.files.input_files import decode
from intaglio.files.safe_yaml import load_yaml
from intaglio.processes.temporary import scratch_directory

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_CONFIG = 4 << 20  # bytes; real ones have 10 kB, or some MB with a large vocabulary
MAX_MEMBERS = 10_000
MAX_VALUES = 1 << 21  # of the configuration; the number that the largest file holds
MAX_RATIO = 32  # of the files' size to the archive's; weights hardly shrink when they are compressed
REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # OmegaConf's reference to another value, ${model.sample_rate}
FIX = "Download or copy the archive again."


def read_archive(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration, with its references replaced, and the weights by name. Raises `SourceError`."""
    try:
        with tarfile.open(path, "r:*") as archive, scratch_directory("nemo") as folder:
            members = _members(archive, path)
            config = _config(archive, members[CONFIG], path)
            weights = folder / WEIGHTS
            _copy(archive, members[WEIGHTS], weights)
            return config, _weights(weights, path)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(f"{path}: not a readable .nemo archive ({one_line(error, 200)}). {FIX}") from error


def _members(archive: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    """The two files by name, in whichever folder of the archive they are."""
    found: dict[str, tarfile.TarInfo] = {}
    size, most = 0, MAX_RATIO * path.stat().st_size + MAX_CONFIG
    for number, member in enumerate(archive):
        size += member.size
        if number >= MAX_MEMBERS:
            raise SourceError(f"{path}: more than {MAX_MEMBERS} files, expected a .nemo archive. {FIX}")
        if size > most:
            raise SourceError(f"{path}: holds more than {most} bytes, {MAX_RATIO} times its own size. {FIX}")
        name = member.name.rpartition("/")[2]
        if name in (CONFIG, WEIGHTS) and member.isfile():
            found.setdefault(name, member)
    for name in (CONFIG, WEIGHTS):
        if name not in found:
            raise SourceError(f"{path}: no {name} in it, so it is not a .nemo archive. {FIX}")
    return found


def _config(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> dict[str, Any]:
    if member.size > MAX_CONFIG:
        raise SourceError(f"{path}: {CONFIG} has {member.size} bytes, expected at most {MAX_CONFIG}. {FIX}")
    file = archive.extractfile(member)
    assert file is not None
    try:
        config = load_yaml(decode(file.read()))
    except Exception as error:  # the library raises its own kinds for odd numbers and dates
        raise SourceError(f"{path}: {CONFIG} is not YAML ({one_line(error, 200)}). {FIX}") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path}: {CONFIG} holds no options. {FIX}")
    try:
        resolved: dict[str, Any] = _resolved(config, config, itertools.count())
    except (RecursionError, ValueError) as error:
        raise SourceError(f"{path}: {CONFIG} refers to itself ({one_line(error, 200)}). {FIX}") from error
    return resolved


def _resolved(value: Any, config: Mapping[str, Any], counter: Iterator[int], depth: int = 0) -> Any:
    """`value` with each string that is one reference replaced by its target, if that is in the file.

    `counter` counts the values: references to lists of references multiply them.
    """
    if next(counter) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values, references included")
    if isinstance(value, dict):
        return {key: _resolved(each, config, counter, depth) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, config, counter, depth) for each in value]
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None or depth > 8:
        return value
    found: Any = config
    names = match[1].split(".")
    for name in names[1:] if names[0] == "model" and "model" not in config else names:
        found = found.get(name) if isinstance(found, dict) else None
    return value if found is None else _resolved(found, config, counter, depth + 1)


def _copy(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = archive.extractfile(member)
    assert source is not None
    with target.open("wb") as file:
        while block := source.read(1 << 24):
            file.write(block)


def _weights(file: Path, path: Path) -> dict[str, Tensor]:
    torch = load("torch")
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise any exception
        raise SourceError(
            f"{path}: {WEIGHTS} cannot be read without running code ({one_line(error, 160)}). {FIX}"
        ) from error
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in weights.items()
    ):
        raise SourceError(f"{path}: {WEIGHTS} does not map names to tensors. {FIX}")
    if unexpected := [name for name, tensor in weights.items() if not _is_plain(tensor)]:
        raise SourceError(f"{path}: the tensor {unexpected[0]!a:.80} is not a plain dense tensor. {FIX}")
    size, most = sum(tensor.nbytes for tensor in weights.values()), 2 * file.stat().st_size
    if size > most or any(not _is_text(name) for name in weights):
        problem = f"its tensors take {size} bytes, expected at most {most}" if size > most else "a name is not text"
        raise SourceError(f"{path}: {WEIGHTS}: {problem}. {FIX}")
    return dict(weights)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds real numbers in memory: not on the meta device, sparse, quantised or complex."""
    torch = load("torch")
    real = tensor.dtype.is_floating_point or tensor.dtype in (torch.int64, torch.int32)
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and real and not tensor.is_quantized


def _is_text(name: str) -> bool:
    """Whether a name has no half of a surrogate pair."""
    return name.encode("utf-8", "replace").decode() == name
