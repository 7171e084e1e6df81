"""Read weights from pytorch_model.bin, and write them as safetensors.

A pickle is a program. torch's restricted unpickler creates tensors only, and refuses everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.display.progress import step
from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints import hub
from intaglio.exporters.checkpoints.checkpoint import Checkpoint, has_weights, indexed_files, read_config
from intaglio.exporters.checkpoints.contents import refuse_folder
from intaglio.exporters.checkpoints.converted import Converted
from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.exporters.checkpoints.quantized.formats import format_of
from intaglio.exporters.checkpoints.quantized.methods import not_read
from intaglio.exporters.checkpoints.sentence_folder import read_modules
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference.source_model import load_state
from intaglio.extras import load
from intaglio.files.hashes import copy_file
from intaglio.files.pointers import check_downloaded, configurations

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
WRITTEN = ("*.safetensors", "*.safetensors.index.json")
NAMED = 3  # tensors in a message


@dataclass(frozen=True)
class Pickled:
    """A checkpoint's folder, its config.json, and the files of its weights."""

    root: Path  # as opened; sentence-transformers may keep the Transformer in a folder of it
    folder: Path  # of config.json and the weights
    config: dict[str, Any]
    family: Family
    weights: tuple[Path, ...]


def open_pickled(location: str) -> Pickled:
    """Open the folder or hub id `location`. Raises `SourceError` without pickled weights of a known architecture."""
    root = Path(location)
    if not root.is_dir():
        root = hub.fetch(location, None, download=True)
        read_config(root, read_modules(root), location, find_kind)  # before the weights are downloaded
        root = hub.fetch(location, None, True, ("pytorch_model*.bin",))
    modules = read_modules(root)
    folder, config = read_config(root, modules, location)
    if format_of(config):
        raise not_read(folder, config, "from safetensors")
    _, family = find_kind(config, str(folder), bool(modules))
    if (folder / INDEX).is_file():
        weights = indexed_files(folder, INDEX)
    elif (folder / WEIGHTS).is_file():
        weights = (folder / WEIGHTS,)
    elif has_weights(folder):
        raise SourceError(f"{location}: has model.safetensors already: intaglio export {location} -o BUNDLE")
    else:
        raise refuse_folder(folder, location)
    check_downloaded(weights)
    return Pickled(root, folder, config, family, weights)


def convert_pickled(pickled: Pickled, folder: Path) -> Converted:
    """Write the model to `folder` as its own class of `transformers` saves it, with all files beside the weights.

    Every tensor that is read is written bit for bit, or named in `left_out`. Raises
    `SourceError` for weights that are missing, and for a file that is damaged or has more than tensors in it.
    """
    with step("loading the libraries"):
        load("torch")
        load("transformers")
    with step("reading"):
        tensors = {name: tensor for path in pickled.weights for name, tensor in _read(path).items()}
        model, unexpected = _build(pickled, tensors)
    with step("writing"):
        target = folder / pickled.folder.relative_to(pickled.root)
        model.save_pretrained(target)
        for path in target.iterdir():
            if not any(path.match(pattern) for pattern in WRITTEN):
                path.unlink()
        for path in {*configurations(pickled.root), *configurations(pickled.folder)}:
            if path.name != INDEX:
                copy_file(path, folder / path.relative_to(pickled.root))
    with step("checking"):
        written = Checkpoint.open(str(folder), check=find_kind)
        left_out = sorted({*unexpected, *_lost(tensors, written)})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = pickled.config.get("vocab_size")
    return Converted(pickled.family.model_type, parameters, tokens if isinstance(tokens, int) else 0, left_out)


def read_pickle(path: Path) -> Any:
    """What a file of torch contains: tensors, mapped, and plain values. Raises `SourceError` for anything else."""
    torch = load("torch")
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # a file of torch before 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        reason = one_line(error, 160)
        raise SourceError(
            f"{path}: cannot be read without running code from it, or is damaged ({reason}). "
            "Download it again, or save the model with transformers' save_pretrained."
        ) from error


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name."""
    torch, read = load("torch"), read_pickle(path)
    if not isinstance(read, Mapping) or not all(torch.is_tensor(each) for each in read.values()):
        keys = ", ".join(map(str, read))[:80] if isinstance(read, Mapping) else type(read).__name__
        raise SourceError(
            f"{path}: has {keys}, expected tensors by name. Save the model with transformers' save_pretrained."
        )
    return dense_tensors(path, read)


def dense_tensors(path: Path, read: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The tensors among what was read, by name.

    Raises `SourceError` for one that is sparse, or larger than the file: its numbers are repeated views of a few.
    """
    torch, size = load("torch"), path.stat().st_size
    found = {str(name): each for name, each in read.items() if torch.is_tensor(each)}
    for name, tensor in found.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu" or tensor.nbytes > size:
            raise SourceError(
                f"{path}: {name} is not stored as its {tensor.numel()} numbers. Save the model with transformers' "
                "save_pretrained."
            )
    return found


def _build(pickled: Pickled, tensors: Mapping[str, Tensor]) -> tuple[Any, list[str]]:
    """The model with these weights, in their dtype, and the names of tensors that it has no place for."""
    where = str(pickled.folder)
    architecture = listed_architecture(pickled.config) or pickled.family.architecture
    options = pickled.family.load_options(architecture, tensors.keys())
    try:
        model, report = load_state(pickled.folder, architecture, tensors, _dtype(tensors), **options)
    except Exception as error:  # the library raises all kinds of exceptions
        raise SourceError(
            f"{where}: config.json and the weights do not form a {architecture}: {one_line(error, 200)}. "
            "Compare config.json with the original, or download the checkpoint again."
        ) from error
    missing = sorted({*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])})
    unexpected = sorted(map(str, report["unexpected_keys"]))
    if missing:
        raise SourceError(
            f"{where}: {len(missing)} weights of {architecture} are missing or have another shape "
            f"({some_of(missing)}). Give the checkpoint of a trained {architecture}."
        )
    if unexpected and not pickled.config.get("architectures"):
        raise SourceError(
            f"{where}: {len(unexpected)} weights are not part of a {architecture} ({some_of(unexpected)}), and "
            'config.json lists no "architectures". Add the name of the class that the checkpoint was saved from.'
        )
    return model, unexpected


def _dtype(tensors: Mapping[str, Tensor]) -> Any:
    """The dtype of all floating-point tensors, or float32 if there are several."""
    torch = load("torch")
    found = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32


def _lost(tensors: Mapping[str, Tensor], written: Checkpoint) -> Iterator[str]:
    """The names of tensors whose numbers are in none of the tensors that were written."""
    dtype = _dtype(tensors)
    found = {_digest(mapped.tensor) for mapped in written.tensors().values()}
    for name, tensor in tensors.items():
        if _digest(tensor.to(dtype) if tensor.is_floating_point() else tensor) not in found:
            yield name


def _digest(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and hash of a tensor's bytes."""
    torch = load("torch")
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tuple(tensor.shape), hashlib.sha256(flat.numpy().data).hexdigest()


def some_of(names: list[str]) -> str:
    """The first of `names`, as a message shows them."""
    return ", ".join(names[:NAMED]) + ("…" if names[NAMED:] else "")
