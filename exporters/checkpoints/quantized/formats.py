"""The formats of quantised weights that are read, to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized import awq, compressed_tensors, fp8, gptq, int_quantized
from intaglio.exporters.checkpoints.quantized.decoded_weight import DecodedWeight
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.exporters.checkpoints.quantized.parts import Parts, layer_groups
from intaglio.exporters.files.config import read_json
from intaglio.exporters.files.safetensors_file import MappedTensor

SECTION = "quantization_config"  # of config.json
METHOD = "quant_method"
GGUF = "gguf"  # the method of files that have no parts to join
WEIGHT = "weight"
StoredTensor = MappedTensor | GroupedWeight | DecodedWeight  # of a parameter; its `tensor` has the numbers
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}  # files beside it, and the method of each


class Format(NamedTuple):
    """The last parts of the names of the tensors that form a weight, and what they form."""

    matrices: tuple[str, ...]  # which each weight has
    others: tuple[str, ...]  # which it may have
    weight: Callable[[str, Parts, Mapping[str, Any]], GroupedWeight | DecodedWeight]
    scale: str = ""  # which each weight has, of any shape, where its numbers are called "weight" as those in floats
    rounds_inputs: bool = False  # made for layers whose inputs are rounded, too; others state it

    @property
    def mark(self) -> str:
        """What a quantised weight alone has."""
        return self.scale or self.matrices[0]


# Method -> its formats by the name under "format"; "" for a method with one.
FORMATS = {
    "gptq": {"": Format(("qweight", "qzeros", "scales"), ("g_idx",), gptq.weight)},
    "awq": {"": Format(("qweight", "qzeros", "scales"), (), awq.weight)},
    "fp8": {"": Format((WEIGHT,), ("input_scale", "activation_scale"), fp8.weight, "weight_scale_inv", True)},
    "fbgemm_fp8": {"": Format((WEIGHT,), ("input_scale_ub",), fp8.weight, "weight_scale", True)},
    "compressed-tensors": {
        "pack-quantized": Format(
            ("weight_packed", "weight_scale"),
            ("weight_shape", "weight_zero_point", "weight_g_idx"),
            compressed_tensors.weight,
        ),
        "int-quantized": Format(
            (WEIGHT,), ("weight_zero_point", "input_scale", "input_zero_point"), int_quantized.weight, "weight_scale"
        ),
        "float-quantized": Format((WEIGHT,), ("input_scale",), fp8.weight, "weight_scale"),
    },
}


def format_of(config: Mapping[str, Any]) -> Format | None:
    """The format of the weights that a config.json describes; None if it is not read, or they are not quantised."""
    settings = config.get(SECTION)
    if not isinstance(settings, dict):
        return None
    formats = FORMATS.get(str(settings.get(METHOD)).lower(), {})
    return formats.get("") or formats.get(str(settings.get("format")))


def is_kept(config: Mapping[str, Any]) -> bool:
    """Whether the weights that a config.json describes are quantised, and read."""
    settings = config.get(SECTION)
    return format_of(config) is not None or (isinstance(settings, dict) and settings.get(METHOD) == GGUF)


def with_settings(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`config` with the settings that older tools write into a file beside it."""
    for name, method in BESIDE.items():
        if SECTION not in config and (folder / name).is_file():
            return {**config, SECTION: {METHOD: method, **read_json(folder / name)}}
    return config


def joined(tensors: Mapping[str, MappedTensor], config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint, with the parts of each quantised weight joined under its own name.

    Raises `SourceError` for parts that form no weight.
    """
    known = format_of(config)
    if known is None:
        return dict(tensors)
    needed = [*known.matrices, *([known.scale] if known.scale else [])]
    names = {*needed, *known.others}
    quantized = {path for path, _, last in (name.rpartition(".") for name in tensors) if last in names - {WEIGHT}}
    parts: dict[str, dict[str, MappedTensor]] = {}
    result: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        if path in quantized and last in names:
            parts.setdefault(path, {})[last] = tensor
        elif is_code(name, tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise SourceError(f"{name}: of {dtype}, without its {known.mark}. Download the whole checkpoint again.")
        else:
            result[name] = tensor
    for path, found in parts.items():
        if missing := [name for name in needed if name not in found]:
            raise SourceError(f"{path}: without its {', '.join(missing)}. Download or copy the whole checkpoint again.")
        if any(len(found[name].shape) != 2 for name in known.matrices):
            raise SourceError(f"{path}: its parts are not matrices. Download or copy the whole checkpoint again.")
        result[f"{path}.{WEIGHT}"] = known.weight(path, found, config[SECTION])
    return result


def is_code(name: str, tensor: MappedTensor) -> bool:
    """Whether a tensor's numbers mean nothing without a scale: a weight of integers, or floats of 8 bits."""
    if tensor.dtype.is_floating_point:
        return tensor.dtype.itemsize == 1
    return name.rpartition(".")[2] == WEIGHT


def kept(parameters: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> list[str]:
    """What a bundle keeps of quantised weights, a line for each kind, and what it leaves."""
    grouped = [each for each in parameters.values() if isinstance(each, GroupedWeight)]
    decoded = Counter(each.form for each in parameters.values() if isinstance(each, DecodedWeight) and each.form)
    if not grouped and not decoded:
        return []
    settings = config[SECTION]
    method = settings[METHOD]
    lines = [
        f"{number} weights are kept as {method} has them: {bits} bits, groups of {size}"
        for (bits, size), number in sorted(Counter((each.bits, each.group_size) for each in grouped).items())
    ]
    lines += [
        f"{number} weights in {form} ({method}) are stored in the model's floating point; compress the bundle"
        for form, number in sorted(decoded.items())
    ]
    known = format_of(config)
    if (known and known.rounds_inputs) or any(group.get("input_activations") for group in layer_groups(settings)):
        lines.append(f"activations, which {method} rounds to 8 bits, are not rounded")
    return lines
