"""Files as the tools of SqueezeLLM write them, of tiny decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from quantized_checkpoints import LINEAR, packed_along_rows, save_stored

Array = np.ndarray[Any, Any]
SECTION = {"quant_method": "squeezellm"}
OPT = (*LINEAR, "fc1.weight", "fc2.weight")


def squeezed(
    weight: Array, bits: int, sparse: float, full: int, random: np.random.Generator
) -> tuple[dict[str, Array], Array]:
    """The parts of a weight [N, K], as SqueezeLLM's class QuantLinearLUT has them, and the numbers that they stand for.

    `sparse`: the share of outliers, `full`: the outputs with a number for each input.
    """
    rows = len(weight)
    lut = np.quantile(weight, np.linspace(0.02, 0.98, 1 << bits), axis=1).T.astype(np.float32, order="C")
    outliers = random.random(weight.shape) < sparse
    dense = np.where(outliers, np.float32(0), weight)
    codes = np.abs(dense[:, :, None] - lut[:, None, :]).argmin(2)
    numbers = np.take_along_axis(lut, codes, 1)
    parts = {"qweight": packed_along_rows(codes.T, bits), "lookup_table": lut}
    rest = np.where(outliers, weight - numbers, np.float32(0))
    which = random.permutation(rows)[:full].astype(np.int32)
    if full:
        parts |= {"full_rows": np.ascontiguousarray(rest[which].T), "full_row_indices": which}
        numbers[which] += rest[which]
        rest[which] = 0
    if sparse:
        row, column = np.nonzero(rest)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
        parts |= {"rows": offsets.astype(np.int32), "cols": column.astype(np.int32), "vals": rest[row, column]}
        numbers += rest
    return parts, numbers


def file_of(folder: Path, model_type: str, bits: int, sparse: float, full: int, left_out: str = "none") -> Path:
    """Write what the library's tools write of a tiny `model_type`, "sq.pt" in `folder`, beside "float", its numbers.

    Without the tensors whose names contain `left_out`.
    """
    import torch
    from safetensors.torch import load_file

    random = np.random.default_rng(bits)

    def store(weight: Any, _: int) -> tuple[dict[str, Any], Any]:
        parts, numbers = squeezed(weight.numpy(), bits, sparse, full, random)
        return {name: torch.from_numpy(each) for name, each in parts.items()}, torch.from_numpy(numbers)

    sizes = {"ffn_dim": 128} if model_type == "opt" else {}
    stored = load_file(save_stored(folder, model_type, SECTION, store, OPT, **sizes) / "model.safetensors")
    state: dict[str, Any] = {name: each for name, each in stored.items() if left_out not in name}
    for name in [name for name in state if name.endswith(".vals")]:
        state[f"sparse_threshold.{name.removesuffix('.vals')}"] = len(state[name])
        state[f"{name.removesuffix('.vals')}.startrows"] = torch.zeros(128, dtype=torch.int32)
    for name in [name for name in state if name.endswith(".full_rows")]:
        state[name] = state[name].T.contiguous().T  # in another order in memory
    state["model.other.weight"] = torch.zeros(8)
    torch.save(state, folder / "sq.pt")
    return folder / "sq.pt"
