"""Speech recognisers with random weights; no weight, statistic or bias is neutral."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from intaglio.networks.speech import checkpoint
from intaglio.networks.speech.configuration import (
    ConformerConfig,
    FrontEnd,
    SpeechConfig,
    SqueezeformerConfig,
    Subsampling,
    check_config,
)
from intaglio.networks.speech.network import SpeechNetwork

SHARED: dict[str, Any] = {
    "vocab_size": 12,
    "blank_token_id": 0,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "conv_kernel_size": 7,
    "front_end": FrontEnd(mels=20),
    "subsampling": Subsampling(channels=4),
}


def squeezeformer(**options: Any) -> SqueezeformerConfig:
    """A tiny Squeezeformer with `options` instead of the defaults."""
    merged = SHARED | {"time_reduce_layer": 1} | options
    return SqueezeformerConfig(model_type="squeezeformer", **merged)


def conformer(**options: Any) -> ConformerConfig:
    """A tiny Conformer with `options` instead of the defaults."""
    return ConformerConfig(model_type="conformer-ctc", **(SHARED | options))


FRONT_ENDS = {
    "zeros": FrontEnd(mels=20),
    "reflect": FrontEnd(mels=20, padding="reflect", last_frame=True, guard="clamp", floor=1e-9, preemphasis=0.0),
    "plain": FrontEnd(mels=20, normalize=False, window=400, fft_size=400, periodic_window=True),
    "stored": FrontEnd(mels=20, constants="stored", precision="float16", normalize=False),
    "8 kHz": FrontEnd(mels=20, sample_rate=8000, window=200, hop=80, fft_size=256),
}
NETWORKS: dict[str, SpeechConfig] = {
    "squeezeformer": squeezeformer(),
    "squeezeformer whose last block is not the recovered one": squeezeformer(time_recover_layer=2, num_hidden_layers=4),
    "squeezeformer at one frame rate": squeezeformer(time_reduce_layer=None, scale_input=False),
    "squeezeformer with full convolutions": squeezeformer(subsampling=Subsampling(kind="convolution", factor=2)),
    "squeezeformer without skip connection": squeezeformer(skip_connection=False),
    "squeezeformer at half the frame rate": squeezeformer(recover_time=False),
    "squeezeformer with post-norm": squeezeformer(normalization="post"),
    "squeezeformer with pre-norm": squeezeformer(normalization="pre"),
    "squeezeformer without swish": squeezeformer(convolution_activation="none"),
    "conformer": conformer(subsampling=Subsampling(kind="convolution", channels=4)),
    "fast conformer": conformer(bias=False, subsampling=Subsampling(factor=8), scale_input=False),
    "conformer without positions": conformer(
        relative_positions=False, batch_norm=False, scale_input=False, subsampling=Subsampling(kind="bands", factor=2)
    ),
    **{
        f"front end {name}": squeezeformer(num_hidden_layers=2, time_reduce_layer=0, front_end=each)
        for name, each in FRONT_ENDS.items()
    },
}


def random_network(config: SpeechConfig, seed: int = 0, front_end: bool = True) -> SpeechNetwork:
    """The network in eval mode; the output varies by several nats between frames."""
    check_config(config, "the test")
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    network = SpeechNetwork(config, front_end).eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1 or "bias_" in name:
            parameter.add_(torch.randn(parameter.shape, generator=random) * 0.3)
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn(buffer.shape, generator=random) * 0.3)
        if name.endswith("running_var"):
            buffer.copy_(torch.rand(buffer.shape, generator=random) + 0.5)
    network.head.weight.mul_(4)
    return network


def write_checkpoint(folder: Path, network: SpeechNetwork) -> Path:
    """Write the network as a checkpoint folder with a vocabulary of letters; return the folder."""
    config = network.config
    folder.mkdir(parents=True)
    tokens = [" ", *(chr(ord("a") + index) for index in range(config.vocab_size - 2))]
    tokens.insert(config.blank_token_id, "<blank>")
    vocabulary = {"tokens": tokens, "blank": config.blank_token_id, "word_mark": " "}
    checkpoint.write_checkpoint(folder, config, network.state_dict(), vocabulary)
    return folder
