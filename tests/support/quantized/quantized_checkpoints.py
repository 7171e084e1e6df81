"""Small checkpoints with quantised weights, packed word by word as the formats' own tools do it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tiny_families import save_family

LINEAR = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")  # the last three of experts
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
Tensors = dict[str, np.ndarray[Any, Any]]


def mapped(parts: Tensors, path: str = "layer") -> dict[str, Any]:
    """The parts as tensors of a file."""
    import torch

    from intaglio.exporters.files.safetensors_file import MappedTensor

    return {
        f"{path}.{name}": MappedTensor(torch.from_numpy(array.copy()), Path("model.safetensors"), 0)
        for name, array in parts.items()
    }


def random_weight(rows: int, inputs: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


class Quantized(NamedTuple):
    """A weight [N, K]: w[n, k] = scales[n, index[k]]·(codes[n, k] - zeros[n, index[k]])."""

    codes: np.ndarray[Any, Any]
    scales: np.ndarray[Any, Any]  # float16 [N, groups]
    zeros: np.ndarray[Any, Any]
    index: np.ndarray[Any, Any]  # [K]
    bits: int

    @property
    def weight(self) -> np.ndarray[Any, Any]:
        """The numbers, float32."""
        scales, zeros = self.scales.astype(np.float32)[:, self.index], self.zeros[:, self.index].astype(np.float32)
        return scales * (self.codes.astype(np.float32) - zeros)


def quantized(
    weight: np.ndarray[Any, Any],
    bits: int,
    group_size: int,
    symmetric: bool = True,
    ordered: bool = True,
    seed: int = 0,
) -> Quantized:
    """A weight rounded to nearest, in groups of inputs that follow each other if `ordered`."""
    rows, inputs = weight.shape
    index = np.arange(inputs) // group_size
    groups = int(index[-1]) + 1
    if not ordered:
        index = np.random.default_rng(seed).permutation(index)
    codes, scales = np.zeros((rows, inputs), np.int64), np.zeros((rows, groups), np.float16)
    zeros = np.full((rows, groups), 2 ** (bits - 1))
    for group in range(groups):
        part = weight[:, index == group]
        low, high = part.min(1), part.max(1)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[:, group] = ((high - low) / (2**bits - 1)).astype(np.float16)
        step = np.maximum(scales[:, group].astype(np.float32), 1e-8)
        if not symmetric:
            zeros[:, group] = np.clip(np.round(-low / step), 1, 2**bits - 1)
        codes[:, index == group] = np.clip(np.round(part / step[:, None]) + zeros[:, group : group + 1], 0, 2**bits - 1)
    return Quantized(codes, scales, zeros, index, bits)


def packed_along_rows(numbers: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """[rows, columns] as words [rows·bits/32, columns], the numbers of a column as one stream of bits."""
    rows, columns = numbers.shape
    words = np.zeros((-(-rows * bits // 32), columns), np.uint64)
    for row in range(rows):
        for bit in range(bits):
            place = row * bits + bit
            words[place // 32] |= (numbers[row].astype(np.uint64) >> np.uint64(bit) & np.uint64(1)) << np.uint64(
                place % 32
            )
    return words.astype(np.uint32).view(np.int32)


def in_planes_along_rows(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[rows, columns] of 3 bits as words: of each 32 rows two words of their lower two bits, and one of the upper."""
    words = []
    for start in range(0, len(numbers), 32):
        part = numbers[start : start + 32]
        words += [packed_along_rows(part & 3, 2), packed_along_rows(part >> 2, 1)]
    return np.concatenate(words)


def gptq(each: Quantized, version: str = "gptq") -> Tensors:
    """The parts of a weight of GPTQ."""
    along_rows = lambda numbers: packed_along_rows(numbers, each.bits)  # noqa: E731
    if version == "gptq_p" and each.bits == 3:
        along_rows = in_planes_along_rows
    if version != "gptq":
        zeros = along_rows(each.zeros)
    elif each.bits == 3:
        zeros = along_rows((each.zeros - 1) % 8)
    else:  # from whole words, with a borrow
        ones = np.uint32(sum(1 << shift for shift in range(0, 32, each.bits)))
        zeros = (along_rows(each.zeros).view(np.uint32) - ones).view(np.int32)
    return {
        "qweight": along_rows(each.codes.T),
        "qzeros": np.ascontiguousarray(zeros.T),
        "scales": np.ascontiguousarray(each.scales.T),
        "g_idx": each.index.astype(np.int32),
    }


def awq(each: Quantized) -> Tensors:
    """The parts of a weight of AWQ."""

    def words(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        by_word = numbers.reshape(len(numbers), -1, 8)[:, :, AWQ_ORDER]
        return np.ascontiguousarray(packed_along_rows(by_word.reshape(len(numbers), -1).T, 4).T)

    scales = np.ascontiguousarray(each.scales.T)
    return {"qweight": words(each.codes.T), "qzeros": words(each.zeros.T), "scales": scales}


def compressed_tensors(each: Quantized) -> Tensors:
    """The parts of a weight of compressed-tensors."""
    parts = {
        "weight_packed": np.ascontiguousarray(packed_along_rows(each.codes.T, each.bits).T),
        "weight_scale": each.scales,
        "weight_shape": np.array(each.codes.shape),
    }
    if (each.zeros != 2 ** (each.bits - 1)).any():
        parts["weight_zero_point"] = packed_along_rows(each.zeros, each.bits)
    if (np.diff(each.index) < 0).any():
        parts["weight_g_idx"] = each.index.astype(np.int32)
    return parts


def settings(method: str, bits: int, group_size: int, symmetric: bool, version: str = "gptq") -> dict[str, Any]:
    """The section of config.json."""
    if method == "compressed-tensors":
        return {"quant_method": method, "format": "pack-quantized", "ignore": ["lm_head"]}
    common = {"quant_method": method, "bits": bits, "group_size": group_size}
    return common | ({"version": "gemm"} if method == "awq" else {"sym": symmetric, "checkpoint_format": version})


PACKED: dict[str, Callable[..., Tensors]] = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed_tensors}


def save_quantized(
    folder: Path, model_type: str, method: str, bits: int = 4, group_size: int = 32, symmetric: bool = True,
    ordered: bool = True, version: str = "gptq", short_scales: bool = False, **options: Any,
) -> Path:  # fmt: skip
    """Write a checkpoint of `model_type` into "quantized" in `folder`, and what its weights stand for into "float".

    `short_scales`: scales have three bits, so that weights are numbers of float16.
    """
    import torch

    named = {"version": version} if method == "gptq" else {}

    def store(weight: Any, seed: int) -> tuple[dict[str, Any], Any]:
        each = quantized(weight.numpy(), bits, group_size, symmetric, ordered, seed)
        if short_scales:
            each = each._replace(scales=(each.scales.view(np.int16) & ~np.int16(0xFF)).view(np.float16))
        parts = {part: torch.from_numpy(array) for part, array in PACKED[method](each, **named).items()}
        return parts, torch.from_numpy(each.weight)

    section = settings(method, bits, group_size, symmetric, version)
    return save_stored(folder, model_type, section, store, **options)


def save_stored(
    folder: Path,
    model_type: str,
    section: dict[str, Any],
    store: Callable[[Any, int], tuple[dict[str, Any], Any]],
    endings: tuple[str, ...] = LINEAR,
    **options: Any,
) -> Path:
    """Write a checkpoint of `model_type` into "quantized" in `folder`, and what its weights stand for into "float".

    `store` returns the parts of a weight, a float32 tensor, and the numbers that they stand for; it gets the number of
    tensors before. `section`: of config.json. `endings`: of the names of the weights that are stored so.
    """
    from safetensors.torch import load_file, save_file

    plain, result = save_family(folder / "float", model_type, **{**SIZES, **options}), folder / "quantized"
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if tensor.dim() > 1 and name.endswith(endings):
            parts, numbers = store(tensor.float(), len(stored))
            stored |= {f"{name.removesuffix('weight')}{part}": each for part, each in parts.items()}
            tensors[name] = numbers.contiguous()
        else:
            stored[name] = tensor
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    result.mkdir()
    for path in plain.glob("*.json"):
        (result / path.name).write_bytes(path.read_bytes())
    save_file(stored, result / "model.safetensors", {"format": "pt"})
    config = json.loads((result / "config.json").read_text())
    (result / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    return result
