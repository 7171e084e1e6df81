"""Recognise checkpoints with quantised weights: by their configuration, and by names and dtypes of their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.formats import SECTION, format_of
from intaglio.exporters.checkpoints.quantized.squeezellm import is_beside_a_pickle
from intaglio.files.json_object import read_json
from intaglio.files.safetensors_header import Entry, read_entries

SECTIONS = ("quantization_config", "compression_config", "quantization", "quant_config")  # of config.json
NESTED = ("text_config", "llm_config", "language_config")  # sections of config.json that may have one of those
METHOD_KEYS = ("quant_method", "quant_algo", "quant_type", "method", "mode", "format")
CALIBRATED = ("gptq", "awq", "lut")


class Method(NamedTuple):
    """The name of a quantisation, and the recipe of `compress` that is nearest to it."""

    name: str
    recipe: str


FP8 = Method("FP8", "int8-weights")
METHODS = {
    "gptq": Method("GPTQ", "gptq"),
    "gptq_marlin": Method("GPTQ (Marlin)", "gptq"),
    "gptqmodel": Method("GPTQ", "gptq"),
    "marlin": Method("Marlin (GPTQ)", "gptq"),
    "awq": Method("AWQ", "awq"),
    "auto-round": Method("AutoRound", "gptq"),
    "autoround": Method("AutoRound", "gptq"),
    "compressed-tensors": Method("compressed-tensors", "gptq"),
    "sparseml": Method("compressed-tensors", "gptq"),
    "bitsandbytes": Method("bitsandbytes", "rtn"),
    "hqq": Method("HQQ", "rtn"),
    "quanto": Method("Quanto", "rtn"),
    "torchao": Method("torchao", "rtn"),
    "eetq": Method("EETQ (int8)", "int8-weights"),
    "fp8": FP8,
    "fbgemm_fp8": Method("FP8 (FBGEMM)", "int8-weights"),
    "mxfp8": Method("MXFP8", "int8-weights"),
    "mxfp4": Method("MXFP4", "lut"),
    "nvfp4": Method("NVFP4", "lut"),
    "modelopt": Method("ModelOpt", "gptq"),
    "aqlm": Method("AQLM", "lut"),
    "vptq": Method("VPTQ", "lut"),
    "quip": Method("QuIP#", "lut"),
    "higgs": Method("HIGGS", "lut"),
    "spqr": Method("SpQR", "lut-sparse"),
    "squeezellm": Method("SqueezeLLM", "lut-sparse"),
    "bitnet": Method("BitNet", "rtn"),
    "exl2": Method("EXL2", "gptq"),
    "exl3": Method("EXL3", "gptq"),
    "quark": Method("Quark", "gptq"),
    "fp_quant": Method("FP-Quant", "lut"),
    "mlx": Method("MLX", "rtn"),
}
# A file beside config.json -> the method, if the file does not name one.
FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quanto_qmap.json": "quanto",
    "quantization_map.json": "quanto",
    "qmodel.pt": "hqq",
    "mlc-chat-config.json": "mlc",
}
# The end of a tensor's name -> the method, tried in order; GPTQ also has a g_idx, which AWQ lacks.
TENSORS = (
    (r"\.quant_state\.bitsandbytes__(nf4|fp4)$", "bitsandbytes"),
    (r"\.(SCB|absmax|nested_absmax|quant_map|weight_format)$", "bitsandbytes"),
    (r"\.g_idx$", "gptq"),
    (r"\.weight_(packed|shape|zero_point)$", "compressed-tensors"),
    (r"\.weight_scale_inv$", "fp8"),
    (r"_blocks$", "mxfp4"),
    (r"\.weight_scale_2$", "nvfp4"),
    (r"\.(codebooks|codes)$", "aqlm"),
    (r"\.(centroids|vector_norm|res_centroids)$", "vptq"),
    (r"\.(Qidxs|SU|SV)$", "quip"),
    (r"\.(trellis|suh|svh)$", "exl3"),
    (r"\.(q_weight|q_invperm|q_scale_max)$", "exl2"),
    (r"\.(W_q|W_q\..*)$", "hqq"),
    (r"\.(weight\._data|weight\._scale|weight_qtype|_data|_scale)$", "quanto"),
    (r"(:_data|:qdata|_weight_qdata|:tensor_impl.*)$", "torchao"),
    (r"\.(dense_weights|row_offsets|col_vals)$", "spqr"),
    (r"\.lookup_table$", "squeezellm"),
    (r"\.weight_scales$", "eetq"),
    (r"\.qzeros$", "awq"),
    (r"\.qweight$", "gptq"),
)
FLOATS = ("F64", "F32", "F16", "BF16")
OF_DTYPE = {"F8_E4M3": FP8, "F8_E5M2": FP8, "F8_E8M0": Method("MXFP4", "lut"), "F4": Method("NVFP4", "lut")}


def check_configuration(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise `SourceError` if config.json, or a file beside it, says that the weights are quantised otherwise."""
    for section in (config, *(config[key] for key in NESTED if isinstance(config.get(key), dict))):
        for key in SECTIONS:
            if (found := section.get(key)) and not _is_off(found) and not (section is config and format_of(config)):
                raise _error(folder, _method(found, key), f"{key} in config.json")
    for name, method in FILES.items():
        if (folder / name).is_file() and format_of(config) is None:
            found = read_json(folder / name) if name.endswith(".json") else {}
            found = next((found[key] for key in SECTIONS if isinstance(found.get(key), dict)), found)
            if is_beside_a_pickle(found):
                continue
            named = _method(found, "") if any(found.get(key) for key in METHOD_KEYS[:2]) else METHODS.get(method)
            raise _error(folder, named or Method(method.upper(), "rtn"), f"{name} beside config.json")


def check_tensors(folder: Path, paths: Iterable[Path]) -> None:
    """Raise `SourceError` if names or dtypes of the tensors in `paths` indicate quantised weights."""
    entries: dict[str, Entry] = {}
    for path in paths:
        entries |= read_entries(path)[0]
    for pattern, method in TENSORS:
        if name := next((name for name in entries if re.search(pattern, name)), None):
            named = _bits_and_bytes(name) if method == "bitsandbytes" else METHODS[method]
            raise _error(folder, named, f"tensor {name}")
    for name, entry in entries.items():
        if name.endswith("weight") and len(entry.shape) > 1 and entry.dtype not in FLOATS:
            found = OF_DTYPE.get(entry.dtype) or Method(f"numbers of type {entry.dtype}", "int8-weights")
            found = METHODS["mlx"] if f"{name.removesuffix('weight')}scales" in entries else found
            raise _error(folder, found, f"tensor {name} is {entry.dtype}")


def not_read(folder: Path, config: Mapping[str, Any], where: str) -> SourceError:
    """The error for a checkpoint in a format that is read, but only from `where`."""
    method = _method(config[SECTION], SECTION)
    return _error(folder, method._replace(name=f"{method.name}, read {where} alone"), SECTION)


def check_parts(folder: Path, config: Mapping[str, Any], paths: Iterable[Path]) -> None:
    """Raise `SourceError` if config.json describes quantised weights, in a format that is read, and there are none."""
    known = format_of(config)
    assert known is not None
    first = known.mark
    if not any(
        name.endswith(first if first.startswith("_") else f".{first}")
        for path in paths
        for name in read_entries(path)[0]
    ):
        raise SourceError(
            f"{folder}: config.json says that its weights are quantised already, with "
            f"{_method(config[SECTION], SECTION).name}, but no tensor is called {first}. Download or copy the whole "
            f"checkpoint again, or remove {SECTION} if they are not."
        )


def _is_off(section: Any) -> bool:
    """Whether a section of bitsandbytes switches both of its formats off: then the weights are not quantised."""
    return isinstance(section, dict) and section.get("load_in_4bit") is False is section.get("load_in_8bit")


def _method(section: Any, key: str) -> Method:
    """The method that a section names, with its bits."""
    if not isinstance(section, dict):
        return METHODS.get(str(section).lower()) or Method(str(section)[:40], "rtn")
    named = next((str(section[name]) for name in METHOD_KEYS if section.get(name)), "")
    if not named and "group_size" in section and key == "quantization":
        named = "mlx"
    if not named and ("load_in_4bit" in section or "load_in_8bit" in section):
        named = "bitsandbytes"
    method = METHODS.get(named.lower().replace("_", "-"), METHODS.get(named.lower()))
    method = method or Method(named[:40] or "an unnamed method", "rtn")
    if method == METHODS["bitsandbytes"]:
        kind = str(section.get("bnb_4bit_quant_type", "fp4")).upper()[:8]
        return (
            Method("bitsandbytes (int8)", "int8-weights")
            if section.get("load_in_8bit")
            else Method(f"bitsandbytes ({kind}, 4 bits)", "lut")
        )
    bits = next((section[name] for name in ("bits", "w_bit", "nbits", "wbits") if section.get(name)), None)
    return Method(f"{method.name}, {bits} bits", method.recipe) if isinstance(bits, int) else method


def _bits_and_bytes(tensor: str) -> Method:
    kind = re.search("__(nf4|fp4)$", tensor)
    if tensor.endswith((".SCB", ".weight_format")):
        return Method("bitsandbytes (int8)", "int8-weights")
    return Method(f"bitsandbytes ({kind[1].upper() if kind else '4 bits'})", "lut")


def _error(folder: Path, method: Method, evidence: str) -> SourceError:
    data = " --calibration FILE" if method.recipe.startswith(CALIBRATED) else ""
    return SourceError(
        f"{folder}: its weights are quantised already, with {method.name} ({evidence}), and export reads weights in "
        "floating point. Give the checkpoint that it was made from, and compress the bundle with: "
        f"intaglio compress BUNDLE -o BUNDLE --recipe {method.recipe}{data}"
    )
