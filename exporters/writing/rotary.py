"""The frequencies of rotary position embeddings (Su et al., 2021), and the usual ways to scale them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError

Frequencies = npt.NDArray[np.float64]  # [head_dim / 2], radians a position


def frequencies(rope: Mapping[str, Any], head_dim: int, max_positions: int) -> tuple[npt.NDArray[np.float32], float]:
    """The factors of the positions, float32 [head_dim / 2], and the factor of the cosines and sines.

    `rope` is `rope_parameters`, which `transformers` derives from rope_theta and rope_scaling. Raises `SourceError` for
    an unsupported kind; "dynamic" and "longrope" would change the angles of tokens already in the cache.
    """
    kind = str(rope.get("rope_type", "default"))
    if kind not in KINDS:
        raise SourceError(
            f"config.json: rotary embeddings of type {kind!r} are not supported, only {', '.join(KINDS)}. "
            "Export a checkpoint without this scaling."
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise SourceError(
            f"config.json: partial_rotary_factor is {rope['partial_rotary_factor']}, expected 1.0 (the whole head "
            "is rotated). Export another model."
        )
    theta = _number(rope, "rope_theta")
    plain: Frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    stretched, factor = KINDS[kind](plain, rope, theta, max_positions)
    return stretched.astype(np.float32), factor


def _number(rope: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = rope.get(key)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise SourceError(
            f"config.json: {key} of the rotary embeddings is {value!r}, expected a number above 0. Fix it."
        )
    return float(value)


def _default(plain: Frequencies, rope: Mapping[str, Any], theta: float, positions: int) -> tuple[Frequencies, float]:
    return plain, 1.0


def _linear(plain: Frequencies, rope: Mapping[str, Any], theta: float, positions: int) -> tuple[Frequencies, float]:
    """Position interpolation: all positions compressed (Chen et al., 2023)."""
    return plain / _number(rope, "factor"), 1.0


def _llama3(plain: Frequencies, rope: Mapping[str, Any], theta: float, positions: int) -> tuple[Frequencies, float]:
    """Long wavelengths compressed, short ones unchanged, with a smooth transition between them (LLaMA 3.1)."""
    factor, original = _number(rope, "factor"), _number(rope, "original_max_position_embeddings")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    if low >= high:
        raise SourceError(f"config.json: low_freq_factor {low} is not below high_freq_factor {high}. Fix it.")
    turns = original * plain / (2 * math.pi)  # rotations of each pair within the original length
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * plain + (1 - kept) * plain / factor, 1.0


def _yarn(plain: Frequencies, rope: Mapping[str, Any], theta: float, positions: int) -> tuple[Frequencies, float]:
    """YaRN: by rotations within the original length, with a softmax temperature (Peng et al., 2023, eq. 17 to 22)."""
    original = _number(rope, "original_max_position_embeddings", positions)
    factor = _number(rope, "factor", positions / original)
    width = 2 * len(plain)

    def dimension(turns: float) -> float:
        """The (fractional) index of the pair of dimensions that makes `turns` rotations."""
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(_number(rope, "beta_fast", 32)), dimension(_number(rope, "beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    kept = 1 - np.clip((np.arange(len(plain)) - low) / (high - low if high != low else 1e-3), 0.0, 1.0)
    return kept * plain + (1 - kept) * plain / factor, _yarn_factor(rope, factor)


def _yarn_factor(rope: Mapping[str, Any], factor: float) -> float:
    if (given := rope.get("attention_factor")) is not None:
        return float(given)

    def scaled(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scaled(float(rope["mscale"])) / scaled(float(rope["mscale_all_dim"]))
    return scaled(1.0)


KINDS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
