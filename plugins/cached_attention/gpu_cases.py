"""Cases of CachedAttention for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, floats
from intaglio.plugins.quantize_cache.slots import quantize


def cases(sizes: Sizes, random: Random) -> Cases:
    """Heads of several widths, groups of 1 and 4, sequences of different lengths, a window, and slots, in words."""
    capacity = sizes.rows[-2] * 3 + 1
    for depth, width, kv_heads in ((64, 64, 4), (128, 128, 1), (24, 12, 2)):
        for tokens in (0, *sizes.few_rows):
            query = floats(random, 2, 4, tokens, depth, dtype="float32")
            key, value = (floats(random, 2, kv_heads, capacity, each, dtype="float32") for each in (depth, width))
            slots = np.arange(capacity)
            mask = slots < np.array([capacity // 2, capacity])[:, None, None, None] - np.arange(tokens)[:, None]
            for attended in (mask, mask & (slots > capacity // 3)):
                yield Case("CachedAttention", (query, key, value, attended), {"scale": depth**-0.5})
            for bits in (8, 4):
                quantised = quantize(key, 8).view(np.float32), quantize(value, bits).view(np.float32)
                attributes = {"key_bits": 8, "value_bits": bits, "value_depth": width}
                yield Case("CachedAttention", (query, *quantised, mask), {"scale": depth**-0.5, **attributes})
