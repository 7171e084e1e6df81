"""A GGUF file of a LLaMA whose weights are random blocks: what imports are measured on.

Speed and memory depend on the kinds of the blocks, not on their numbers. The scales of all blocks are alike, so that no
number is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.shared.llama_cpp_peer import write_config, write_vocabulary
from benchmarks.shared.random_llama import Shape, write_tokenizer
from intaglio.display.progress import track
from intaglio.runtime.text.tokenizer import TOKENIZER

# Kind of block -> where its float16 scales and minimums begin, and what they are.
SCALES = {
    "Q4_0": {0: 0.003},
    "Q8_0": {0: 0.0003},
    "Q4_K": {0: 1e-4, 2: 7e-4},
    "Q6_K": {208: 3e-5},
}


def more_bits(layer: int, layers: int) -> bool:
    """Whether llama.cpp's mixtures give values and down projections of this layer more bits."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def q4_k_m(name: str, layers: int) -> str:
    """The kind of a matrix in llama.cpp's mixture of this name."""
    if name == "output.weight":
        return "Q6_K"
    layered = name.endswith(("attn_v.weight", "ffn_down.weight"))
    return "Q6_K" if layered and more_bits(int(name.split(".")[1]), layers) else "Q4_K"


def only(kind: str) -> Callable[[str, int], str]:
    """Every matrix is of this kind."""
    return lambda name, layers: kind


FORMATS = {"Q4_K_M": q4_k_m, "Q6_K": only("Q6_K"), "Q8_0": only("Q8_0"), "Q4_0": only("Q4_0")}


def write(path: Path, shape: Shape, file_format: str) -> Path:
    """Write the file to `path` unless it is there; one weight is in memory at a time."""
    import gguf

    if path.exists():
        return path
    partial = path.with_suffix(".partial")
    tokenizer = path.with_suffix(f".{TOKENIZER}")
    write_tokenizer(tokenizer)
    writer = gguf.GGUFWriter(partial, "llama")
    write_config(writer, shape.config())
    write_vocabulary(writer, tokenizer, shape.config())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.layers)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for source, lengths in shape.weights().items():
        name = names.get_name(source, try_suffixes=(".weight",))
        kind = "F32" if len(lengths) == 1 else FORMATS[file_format](name, shape.layers)
        tensors[name] = kind, lengths
        dtype = np.dtype(np.float32 if kind == "F32" else np.uint8)
        stored = lengths if kind == "F32" else (*lengths[:-1], _row_bytes(kind, lengths[-1]))
        raw = gguf.GGMLQuantizationType[kind]
        writer.add_tensor_info(name, stored, dtype, prod(stored) * dtype.itemsize, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    for kind, lengths in track(tensors.values(), f"writing random blocks, {file_format}", total=len(tensors)):
        writer.write_tensor_data(np.ones(lengths, np.float32) if kind == "F32" else _blocks(kind, lengths, random))
    writer.close()
    tokenizer.unlink()
    return partial.rename(path)


def _row_bytes(kind: str, inputs: int) -> int:
    import gguf

    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return inputs // numbers * int(size)


def _blocks(kind: str, lengths: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[Any]:
    import gguf

    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    found = random.integers(0, 256, (lengths[0], _row_bytes(kind, lengths[1]) // size, size), np.uint8)
    for place, scale in SCALES[kind].items():
        found[..., place : place + 2] = np.array([scale], np.float16).view(np.uint8)
    return found.reshape(lengths[0], -1)
