"""A checkpoint of GPTQ with a LLaMA of random codes: 4 bits, groups of 128, as GPTQModel writes it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from benchmarks.shared.random_llama import Shape, write_tokenizer
from intaglio.display.progress import track
from intaglio.exporters.checkpoints.checkpoint import CONFIG, WEIGHTS
from intaglio.runtime.text.tokenizer import TOKENIZER

BITS, GROUP = 4, 128


def write(folder: Path, shape: Shape) -> Path:
    """Write the checkpoint into `folder` unless it is there."""
    if (folder / CONFIG).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder / TOKENIZER)
    random, tensors = np.random.default_rng(0), {}
    for name, lengths in track(shape.weights().items(), "writing random codes", total=len(shape.weights())):
        if "_proj." not in name:
            tensors[name] = np.ones(lengths, np.float16) * np.float16(1 if len(lengths) == 1 else 0.02)
            continue
        outputs, inputs = lengths
        groups = inputs // GROUP
        layer = name.removesuffix("weight")
        tensors |= {
            f"{layer}qweight": random.integers(-(2**31), 2**31, (inputs * BITS // 32, outputs), np.int64).astype(
                np.int32
            ),
            f"{layer}qzeros": np.full((groups, outputs * BITS // 32), 0x77777777, np.int32),
            f"{layer}scales": np.full((groups, outputs), 0.003, np.float16),
            f"{layer}g_idx": np.arange(inputs, dtype=np.int32) // GROUP,
        }
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    quantization = {"quant_method": "gptq", "bits": BITS, "group_size": GROUP, "sym": True, "checkpoint_format": "gptq"}
    (folder / CONFIG).write_bytes(msgspec.json.encode({**shape.config(), "quantization_config": quantization}))
    return folder
