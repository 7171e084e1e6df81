"""Small random speech recognisers of both architectures, as checkpoint folders, with a vocabulary of letters."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

WORD_MARK = " "
TOKENS = ["<blank>", WORD_MARK, *string.ascii_lowercase]
SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "blank_token_id": 0,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "feed_forward_expansion": 2,
    "conv_kernel_size": 7,
}
OWN: dict[str, dict[str, Any]] = {"conformer-ctc": {}, "squeezeformer": {"time_reduce_layer": 1}}


def save_recogniser(folder: Path, model_type: str = "squeezeformer", seed: int = 0, **options: Any) -> Path:
    """Write a checkpoint of `model_type` into `folder`, and return it.

    The biases, the scales and the statistics of batch normalisations are random too, far from 0 and 1. `options` are
    those of config.json; `front_end` is a mapping.
    """
    import torch

    from intaglio.networks.speech.checkpoint import write_checkpoint
    from intaglio.networks.speech.configuration import read_config
    from intaglio.networks.speech.network import SpeechNetwork

    config = {"model_type": model_type, **SIZES, **OWN[model_type], **options}
    torch.manual_seed(seed)
    network = SpeechNetwork(read_config(config, "config")).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim == 1 or (parameter.ndim == 3 and parameter.shape[1] == 1):  # the biases of attention too
            parameter.add_(torch.randn_like(parameter) / 4)
    state = dict(network.state_dict())
    for name, tensor in state.items():
        if name.endswith("running_mean"):
            tensor.normal_()
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder, network.config, state, {"tokens": TOKENS, "blank": 0, "word_mark": WORD_MARK})
    return folder
