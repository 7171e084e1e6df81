"""Convert a file of SqueezeLLM: a decoder's weights as codes, tables and sparse numbers, in a pickle of torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import CONFIG, INDEX, Checkpoint, has_weights, read_config
from intaglio.exporters.checkpoints.converted import Converted
from intaglio.exporters.checkpoints.family import Family, architecture_of
from intaglio.exporters.checkpoints.quantized import squeezellm
from intaglio.exporters.checkpoints.quantized.formats import METHOD, SECTION, WEIGHT
from intaglio.exporters.checkpoints.sentence_folder import read_modules
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.pickled import INDEX as PICKLED_INDEX
from intaglio.exporters.pickled import WEIGHTS as PICKLED_WEIGHTS
from intaglio.exporters.pickled import dense_tensors, read_pickle, some_of
from intaglio.exporters.reference.source_model import load_state
from intaglio.exporters.writing.safetensors_parts import write_parts
from intaglio.extras import load
from intaglio.files.hashes import copy_file
from intaglio.files.json_object import read_json
from intaglio.files.pointers import configurations

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = ".pt"
PICKLED = (PICKLED_WEIGHTS, PICKLED_INDEX)
COUNTS = "sparse_threshold."  # and a layer's name: how many sparse numbers it has
TABLE, CODES = ".lookup_table", ".qweight"
BASE = "the folder of the model that it was made from: intaglio convert {path} --base FOLDER -o CHECKPOINT"


@dataclass(frozen=True)
class Squeezed:
    """The tensors of a file of SqueezeLLM by name, and the checkpoint that it was made from, or its config.json."""

    path: Path
    tensors: Mapping[str, Tensor]
    base: Path
    config: dict[str, Any]
    family: Family


def open_squeezed(path: Path, base: Path | None) -> Squeezed | None:
    """Open the file at `path`; None if it is none of SqueezeLLM. `base`: by default, the folder that it is in.

    Raises `SourceError` for a damaged file, and for a base without a config.json of a decoder.
    """
    read = read_pickle(path)
    if not isinstance(read, Mapping) or not any(str(name).endswith(TABLE) for name in read):
        return None
    torch = load("torch")
    tensors = dense_tensors(path, read)
    for name, value in read.items():
        values = tensors.get(f"{str(name).removeprefix(COUNTS)}.{squeezellm.SPARSE[-1]}")
        if not torch.is_tensor(value) and (not str(name).startswith(COUNTS) or values is None or len(values) != value):
            raise SourceError(f"{path}: {name} is {value!r:.40}, and no number of sparse values. Download it again.")
    folder = path.parent if base is None else base
    if not (folder / CONFIG).is_file():
        raise SourceError(f"{path}: weights of SqueezeLLM, and no {CONFIG} in {folder}. Give {BASE.format(path=path)}")
    folder, config = read_config(folder, read_modules(folder), str(folder))
    _, family = find_kind(config, str(folder))
    if SECTION in read_json(folder / CONFIG):  # not in the quant_config.json that the library's tools write
        raise SourceError(f"{folder}: its weights are quantised already. Give {BASE.format(path=path)}")
    return Squeezed(path, tensors, folder, config, family)


def convert_squeezed(squeezed: Squeezed, folder: Path) -> Converted:
    """Write the weights unchanged to `folder`, and from the base what the file lacks, and all files beside weights.

    Raises `SourceError` for parts that form no weight, and for weights that are missing.
    """
    with step("writing"):
        for path in configurations(squeezed.base):
            if path.name not in (INDEX, PICKLED_INDEX):
                copy_file(path, folder / path.name)
        config = {**squeezed.config, SECTION: {METHOD: squeezellm.METHOD}}
        (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
        write_parts(folder, _tensors(squeezed))
    with step("checking"):
        written = Checkpoint.open(str(folder), check=find_kind)
        left_out = _check(squeezed, written)
    parameters = sum(math.prod(each.shape) for each in written.parameters().values())
    tokens = squeezed.config.get("vocab_size")
    return Converted(squeezed.family.model_type, parameters, tokens if isinstance(tokens, int) else 0, left_out)


def _tensors(squeezed: Squeezed) -> Iterator[tuple[str, Tensor]]:
    """The tensors to write: each in memory of its own, as some share theirs, such as those of a tied head."""
    torch = load("torch")
    quantized = {name.removesuffix(CODES) for name in squeezed.tensors if name.endswith(CODES)}
    for name, tensor in squeezed.tensors.items():
        if not name.endswith(f".{squeezellm.THREADS}"):
            yield name, tensor.clone(memory_format=torch.contiguous_format)
    if has_weights(squeezed.base):
        for name, mapped in Checkpoint.open(str(squeezed.base)).tensors().items():
            if name not in squeezed.tensors and name.removesuffix(f".{WEIGHT}") not in quantized:
                yield name, mapped.tensor.clone()


def _check(squeezed: Squeezed, written: Checkpoint) -> list[str]:
    """The names of weights that the model has no place for. Raises `SourceError` if it lacks some."""
    from intaglio.exporters.checkpoints.deferred import DeferredTensor

    weights = {name: DeferredTensor.of(name, stored) for name, stored in written.parameters().items()}
    architecture = architecture_of(squeezed.config, squeezed.family)
    _, report = load_state(written.folder, architecture, weights, load("torch").float32)
    missing = sorted({*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])})
    if missing:
        pickled = not has_weights(squeezed.base) and any((squeezed.base / name).is_file() for name in PICKLED)
        fix = f"its weights as safetensors: intaglio convert {squeezed.base} -o BASE, and give BASE as --base."
        raise SourceError(
            f"{squeezed.path}: {len(missing)} weights of {architecture} are missing or have another shape "
            f"({some_of(missing)}). Give {fix if pickled else BASE.format(path=squeezed.path)}"
        )
    return sorted(map(str, report["unexpected_keys"]))
