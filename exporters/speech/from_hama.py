"""The checkpoint of the package `hama` (1.7): a Conformer that writes phonemes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.files.json_object import read_json
from intaglio.networks.speech.configuration import ConformerConfig, FrontEnd, Subsampling

Array = npt.NDArray[np.floating]

VOCABULARY = "g2p_vocab.json"  # beside the container; its "decoder" lists the phonemes
AFTER = ("<wb>", "<blank>")  # what follows the phonemes: the end of a word, and CTC's blank
HEADS = 4  # not in the file
BLANK_BIAS = -0.1 * 0.95  # the package adds -0.1 after it has divided the log-probabilities by 0.95
BLOCK = "acoustic_model.model.blocks"
HEAD = "acoustic_model.model.proj"
CONSTANTS = ("mel_fb", "stft_real_kernel", "stft_imag_kernel")
FRONT_END = FrontEnd(
    fft_size=400, constants="stored", periodic_window=True, preemphasis=0.0, padding="reflect", last_frame=True,
    guard="clamp", floor=1e-10, normalize=False, precision="float16",
)  # fmt: skip

# Names of a block in the container -> ours. The matrices of linear layers have no name there.
PARTS = {
    "ffn1.norm": "norm_feed_forward1",
    "attn_norm": "norm_attention",
    "conv.norm": "norm_convolution",
    "ffn2.norm": "norm_feed_forward2",
    "norm": "norm_out",
    "conv.pointwise1": "convolution.pointwise1",
    "conv.pointwise2": "convolution.pointwise2",
    "attn.out_proj": "attention.o_proj",
    "ffn1.fc1": "feed_forward1.linear1",
    "ffn1.fc2": "feed_forward1.linear2",
    "ffn2.fc1": "feed_forward2.linear1",
    "ffn2.fc2": "feed_forward2.linear2",
}
# The matrices of a block in the order of their numbers: [inputs, outputs].
MATRICES = (
    "feed_forward1.linear1", "feed_forward1.linear2", "qkv", "attention.o_proj", "feed_forward2.linear1",
    "feed_forward2.linear2",
)  # fmt: skip


def read_hama(tensors: Mapping[str, Array], path: Path) -> tuple[ConformerConfig, dict[str, Array], dict[str, Any]]:
    """Configuration, weights under our names, and vocabulary of the container `tensors`, read from `path`.

    Raises `SourceError` if it does not hold this network.
    """
    blocks = {int(found[1]) for name in tensors if (found := re.match(rf"{re.escape(BLOCK)}\.(\d+)\.", name))}
    numbered = {kind: _numbered(tensors, kind) for kind in ("Conv", "MatMul")}
    count = len(blocks)
    complete = len(numbered["MatMul"]) == 6 * count and len(numbered["Conv"]) == 2 * (count + 1)
    if not count or not complete or any(name not in tensors for name in CONSTANTS):
        raise SourceError(
            f"{path}: {count} blocks, {len(numbered['MatMul'])} matrices and {len(numbered['Conv'])} convolution "
            "weights, which is not the network of hama 1.7. Install hama==1.7.0 and take its asr_waveform.hama."
        )
    weights = _named(tensors, count, numbered)
    width, kernel = tensors[numbered["Conv"][0]].shape[0], tensors[numbered["Conv"][2]].shape[-1]
    vocabulary = _vocabulary(path)
    config = ConformerConfig(
        model_type="conformer-ctc",
        vocab_size=len(vocabulary["tokens"]),
        blank_token_id=vocabulary["blank"],
        hidden_size=width,
        num_hidden_layers=count,
        num_attention_heads=HEADS,
        front_end=FRONT_END,
        subsampling=Subsampling(kind="bands", factor=2),
        feed_forward_expansion=tensors[numbered["MatMul"][0]].shape[1] // width,
        conv_kernel_size=kernel,
        scale_input=False,
        relative_positions=False,
        batch_norm=False,
    )
    return config, weights, vocabulary


def _numbered(tensors: Mapping[str, Array], kind: str) -> list[str]:
    """The tensors that ONNX's exporter named by number, in the order of the numbers."""
    names = [name for name in tensors if re.fullmatch(rf"onnx::{kind}_\d+", name)]
    return sorted(names, key=lambda name: int(name.rpartition("_")[2]))


def _named(tensors: Mapping[str, Array], count: int, numbered: Mapping[str, list[str]]) -> dict[str, Array]:
    convolutions = iter(numbered["Conv"])
    subsampling = "encoder.subsampling.convolution"
    weights = {f"{subsampling}.{part}": tensors[next(convolutions)] for part in ("weight", "bias")}
    for index in range(count):
        path = f"encoder.layers.{index}"
        for part in ("weight", "bias"):
            weights[f"{path}.convolution.depthwise.{part}"] = tensors[next(convolutions)]
        for place, name in enumerate(MATRICES):
            matrix = tensors[numbered["MatMul"][6 * index + place]].T
            for each, array in _split(f"{path}.{name}", matrix):
                weights[f"{each}.weight"] = array
    for stored, tensor in tensors.items():
        if found := re.fullmatch(rf"{re.escape(BLOCK)}\.(\d+)\.(.+?)[._](weight|bias)", stored):
            path = f"encoder.layers.{found[1]}"
            inside = "qkv" if found[2] == "attn.in_proj" else PARTS.get(found[2], found[2])
            for each, array in _split(f"{path}.{inside}", tensor):
                weights[f"{each}.{found[3]}"] = array
    weights |= {f"head.{part}": tensors[f"{HEAD}.{part}"] for part in ("weight", "bias") if f"{HEAD}.{part}" in tensors}
    filters, real, imaginary = (tensors[name] for name in CONSTANTS)
    weights |= {"front_end.filters": filters.T, "front_end.waves": np.concatenate([real, imaginary])}
    return {name: array[..., 0] if array.shape[2:] == (1,) else array for name, array in weights.items()}


def _split(name: str, array: Array) -> list[tuple[str, Array]]:
    """Queries, keys and values as the three projections that they are."""
    path, _, last = name.rpartition(".")
    if last != "qkv":
        return [(name, array)]
    return [(f"{path}.attention.{each}_proj", part) for each, part in zip("qkv", np.split(array, 3), strict=True)]


def _vocabulary(path: Path) -> dict[str, Any]:
    file = path.with_name(VOCABULARY)
    if not file.is_file():
        raise SourceError(f"{file}: no such file, it lists the phonemes. Copy it from the package as well.")
    phonemes = read_json(file).get("decoder")
    if not isinstance(phonemes, list) or not all(isinstance(each, str) for each in phonemes):
        raise SourceError(f"{file}: its decoder is not a list of phonemes. Copy it from the package again.")
    tokens = [*phonemes, *AFTER]
    return {"tokens": tokens, "blank": tokens.index(AFTER[1]), "word_mark": AFTER[0], "blank_bias": BLANK_BIAS}
