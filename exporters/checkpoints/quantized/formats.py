"""The formats of quantised weights that are read, to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized import awq, compressed_tensors, gptq
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.exporters.checkpoints.quantized.parts import Parts
from intaglio.exporters.files.config import read_json
from intaglio.exporters.files.safetensors_file import MappedTensor

SECTION = "quantization_config"  # of config.json
METHOD = "quant_method"
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}  # files beside it, and the method of each


class Format(NamedTuple):
    """The last parts of the names of the tensors that form a weight, and what they form."""

    matrices: tuple[str, ...]  # which each weight has
    others: tuple[str, ...]  # which it may have
    weight: Callable[[str, Parts, Mapping[str, Any]], GroupedWeight]
    only: str = ""  # the one format of the method that is read


FORMATS = {
    "gptq": Format(("qweight", "qzeros", "scales"), ("g_idx",), gptq.weight),
    "awq": Format(("qweight", "qzeros", "scales"), (), awq.weight),
    "compressed-tensors": Format(
        ("weight_packed", "weight_scale"),
        ("weight_shape", "weight_zero_point", "weight_g_idx"),
        compressed_tensors.weight,
        "pack-quantized",
    ),
}


def format_of(config: Mapping[str, Any]) -> Format | None:
    """The format of the weights that a config.json describes; None if it is not read, or they are not quantised."""
    settings = config.get(SECTION)
    if not isinstance(settings, dict):
        return None
    found = FORMATS.get(str(settings.get(METHOD)).lower())
    return None if found and found.only and settings.get("format") != found.only else found


def with_settings(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`config` with the settings that older tools write into a file beside it."""
    for name, method in BESIDE.items():
        if SECTION not in config and (folder / name).is_file():
            return {**config, SECTION: {METHOD: method, **read_json(folder / name)}}
    return config


def joined(tensors: Mapping[str, MappedTensor], config: Mapping[str, Any]) -> dict[str, MappedTensor | GroupedWeight]:
    """The tensors of a checkpoint, with the parts of each quantised weight joined under its own name.

    Raises `SourceError` for parts that form no weight.
    """
    known = format_of(config)
    if known is None:
        return dict(tensors)
    parts: dict[str, dict[str, MappedTensor]] = {}
    result: dict[str, MappedTensor | GroupedWeight] = {}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        if last in (*known.matrices, *known.others):
            parts.setdefault(path, {})[last] = tensor
        else:
            result[name] = tensor
    for path, found in parts.items():
        if missing := [name for name in known.matrices if name not in found]:
            raise SourceError(f"{path}: without its {', '.join(missing)}. Download or copy the whole checkpoint again.")
        if any(len(found[name].shape) != 2 for name in known.matrices):
            raise SourceError(f"{path}: its parts are not matrices. Download or copy the whole checkpoint again.")
        result[f"{path}.weight"] = known.weight(path, found, config[SECTION])
    return result


def kept(parameters: Mapping[str, MappedTensor | GroupedWeight], config: Mapping[str, Any]) -> list[str]:
    """What a bundle keeps of quantised weights, a line for each number of bits and size of groups."""
    weights = [each for each in parameters.values() if isinstance(each, GroupedWeight)]
    counts = Counter((each.bits, each.group_size) for each in weights)
    method = config[SECTION][METHOD] if weights else ""
    return [
        f"{number} weights are kept as {method} has them: {bits} bits, groups of {size}"
        for (bits, size), number in sorted(counts.items())
    ]
