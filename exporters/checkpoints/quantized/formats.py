"""The formats of quantised weights that are read, to the bit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized import (
    awq,
    bitsandbytes,
    compressed_tensors,
    float4,
    fp8,
    gptq,
    hqq,
    int_quantized,
    squeezellm,
)
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, StackedWeight
from intaglio.exporters.checkpoints.quantized.parts import Arrays, Parts, layer_groups
from intaglio.exporters.checkpoints.quantized.tabled_weight import TabledWeight
from intaglio.exporters.files.computed_tensor import ComputedTensor, FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor
from intaglio.files.json_object import read_json

SECTION = "quantization_config"  # of config.json
METHOD = "quant_method"
GGUF = "gguf"  # the method of files that have no parts to join
WEIGHT = "weight"
CodedWeight = GroupedWeight | TabledWeight  # whose codes a graph multiplies by
StoredTensor = FloatTensor | StackedWeight | CodedWeight  # of a parameter; its `tensor` has the numbers
BESIDE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}  # files beside it, and the method of each


def is_coded(weight: StoredTensor) -> bool:
    """Whether a graph multiplies by codes of it, or of its experts."""
    return is_coded(weight.experts[0]) if isinstance(weight, StackedWeight) else isinstance(weight, CodedWeight)


def with_activation_bits(weights: Mapping[str, StoredTensor], bits: int) -> dict[str, StoredTensor]:
    """The weights, with activations of `bits` for quantised ones; what is one object under several names stays so."""
    changed: dict[int, StoredTensor] = {}

    def change(weight: StoredTensor) -> StoredTensor:
        if isinstance(weight, StackedWeight):
            return replace(weight, experts=tuple(map(change, weight.experts)))
        return replace(weight, activation_bits=bits) if isinstance(weight, CodedWeight) else weight

    return {name: changed.setdefault(id(weight), change(weight)) for name, weight in weights.items()}


class Format(NamedTuple):
    """The last parts of the names of the tensors that form a weight, and what they form."""

    matrices: tuple[str, ...]  # which each weight has
    others: tuple[str, ...]  # which it may have
    weight: Callable[[str, Parts, Mapping[str, Any]], StackedWeight | CodedWeight | ComputedTensor]
    scale: str = ""  # which each weight has, of any shape, where its numbers are called "weight" as those in floats
    rounds_inputs: bool = False  # made for layers whose inputs are rounded, too; others state it
    axes: int = 2  # of its matrices

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
        "mxfp4-pack-quantized": Format(("weight_packed", "weight_scale"), (), float4.mx_weight),
        "nvfp4-pack-quantized": Format(
            ("weight_packed", "weight_scale"), ("weight_global_scale", "input_global_scale"), float4.nv_weight
        ),
    },
    "modelopt": {
        "FP8": Format((WEIGHT,), ("input_scale",), fp8.weight, "weight_scale", True),
        "NVFP4": Format((WEIGHT,), ("weight_scale_2", "input_scale"), float4.nv_weight, "weight_scale", True),
    },
    "mxfp4": {"": Format(("_blocks", "_scales"), (), float4.experts, axes=0)},  # after the weight's name, without a dot
    "bitsandbytes": {
        "4 bits": Format(
            (WEIGHT,),
            ("weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", *bitsandbytes.STATES),
            bitsandbytes.of_4_bits,
            "weight.absmax",
        ),
        "8 bits": Format((WEIGHT,), ("weight_format",), bitsandbytes.of_8_bits, "SCB", True),
    },
    squeezellm.METHOD: {
        "": Format(("qweight", "lookup_table"), (*squeezellm.SPARSE, *squeezellm.FULL), squeezellm.weight)
    },
    "hqq": {"": Format(("W_q", "scale", "zero"), ("shape", *hqq.SETTINGS, *hqq.QUANTISED), hqq.weight)},
}


class Writer(NamedTuple):
    """How weights are written in a format, as its reader reads them."""

    stored: Callable[[str, GroupedWeight], Arrays]  # its parts, by the last parts of their names
    settings: Callable[[Mapping[str, GroupedWeight], Sequence[str]], dict[str, Any]]  # quantization_config


WRITERS = {
    "gptq": Writer(gptq.stored, gptq.settings),
    "gptq_v2": Writer(partial(gptq.stored, layout=gptq.SECOND), partial(gptq.settings, layout=gptq.SECOND)),
    "awq": Writer(awq.stored, awq.settings),
    "compressed-tensors": Writer(compressed_tensors.stored, compressed_tensors.settings),
}


def format_of(config: Mapping[str, Any]) -> Format | None:
    """The format of the weights that a config.json describes; None if it is not read, or they are not quantised."""
    settings = config.get(SECTION)
    if not isinstance(settings, dict):
        return None
    formats = FORMATS.get(str(settings.get(METHOD)).lower(), {})
    return formats.get("") or formats.get(_variant(settings))


def _variant(settings: Mapping[str, Any]) -> str:
    """The name of a format among those of its method."""
    if "load_in_8bit" in settings or "load_in_4bit" in settings:
        return "8 bits" if settings.get("load_in_8bit") else "4 bits" if settings.get("load_in_4bit") else ""
    return str(settings.get("format") or settings.get("quant_algo"))


def is_kept(config: Mapping[str, Any]) -> bool:
    """Whether the weights that a config.json describes are quantised, and read."""
    settings = config.get(SECTION)
    return format_of(config) is not None or (isinstance(settings, dict) and settings.get(METHOD) == GGUF)


def with_settings(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`config` with the settings that older tools write into a file beside it."""
    for name, method in BESIDE.items():
        if SECTION not in config and (folder / name).is_file():
            found = read_json(folder / name)
            if squeezellm.is_beside_a_pickle(found):
                continue
            inner = found.get("quantization")
            return {**config, SECTION: {METHOD: method, **(inner if isinstance(inner, dict) else found)}}
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
    quantized = {path for path, part in (_split(name, names) for name in tensors) if part in names - {WEIGHT}}
    parts: dict[str, dict[str, MappedTensor]] = {}
    result: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        path, part = _split(name, names)
        if path in quantized and part in names:
            parts.setdefault(path, {})[part] = tensor
        elif is_code(name, tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise SourceError(f"{name}: of {dtype}, without its {known.mark}. Download the whole checkpoint again.")
        else:
            result[name] = tensor
    for path, found in parts.items():
        if missing := [name for name in needed if name not in found]:
            raise SourceError(f"{path}: without its {', '.join(missing)}. Download or copy the whole checkpoint again.")
        if known.axes and any(len(found[name].shape) != known.axes for name in known.matrices):
            raise SourceError(f"{path}: its parts are not matrices. Download or copy the whole checkpoint again.")
        name = path if known.matrices[0].startswith("_") else f"{path}.{WEIGHT}"
        result[name] = known.weight(path, found, config[SECTION])
    return result


def _split(name: str, parts: Collection[str]) -> tuple[str, str]:
    """A tensor's name as a path and the longest of `parts` that it ends with; its last word where it ends with none."""
    if ending := next((part for part in parts if part.startswith("_") and name.endswith(part)), None):
        return name.removesuffix(ending), ending
    words = name.split(".")
    for first in range(1, len(words)):
        if (part := ".".join(words[first:])) in parts:
            return ".".join(words[:first]), part
    return name.rpartition(".")[0], words[-1]


def is_code(name: str, tensor: MappedTensor) -> bool:
    """Whether a tensor's numbers mean nothing without a scale: a weight of integers, or floats of 8 bits."""
    if tensor.dtype.is_floating_point:
        return tensor.dtype.itemsize == 1
    return name.rpartition(".")[2] == WEIGHT


def kept(parameters: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> list[str]:
    """What a bundle keeps of quantised weights, a line for each kind, and what it leaves."""
    single = [
        each
        for stored in parameters.values()
        for each in (stored.experts if isinstance(stored, StackedWeight) else (stored,))
    ]
    grouped = [each for each in single if isinstance(each, GroupedWeight)]
    tabled = [each for each in single if isinstance(each, TabledWeight)]
    decoded = Counter(each.form for each in single if isinstance(each, ComputedTensor) and each.form)
    if not grouped and not tabled and not decoded:
        return []
    settings = config[SECTION]
    method = settings[METHOD]
    lines = [
        f"{number} weights are kept as {method} has them: {bits} bits, groups of {size}"
        for (bits, size), number in sorted(Counter((each.bits, each.group_size) for each in grouped).items())
    ]
    lines += [
        f"{number} weights are kept as {method} has them: {bits} bits, a table for each output"
        for bits, number in sorted(Counter(each.bits for each in tabled).items())
    ]
    if sparse := sum(len(each.sparse.values) for each in tabled if each.sparse is not None):
        share = sparse / sum(math.prod(each.shape) for each in tabled)
        lines.append(f"{sparse} sparse numbers are kept, {100 * share:.2g} % of the weights")
    lines += [
        f"{number} weights in {form} ({method}) are stored in the model's floating point; compress the bundle"
        for form, number in sorted(decoded.items())
    ]
    known = format_of(config)
    if (known and known.rounds_inputs) or any(group.get("input_activations") for group in layer_groups(settings)):
        lines.append(f"activations, which {method} rounds to 8 bits, are not rounded")
    return lines
