"""Drafts for small random decoders, and their reference predictions, without masks or caches of our own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.networks.drafts import HIDDEN_TRANSFER, MATRICES, RECORD, Drafts
from intaglio.runtime.sessions.step import decoder_of

LAYERS = (0, 1, 1)  # of the two blocks of small decoders


def save_drafts(checkpoint: Path, folder: Path, kind: Any, layers: tuple[int, ...] = LAYERS, width: int = 32) -> Path:
    """A copy of `checkpoint` in `folder` with random drafts, one step for each of `layers`."""
    from safetensors.numpy import save_file

    shutil.copytree(checkpoint, folder)
    random = np.random.default_rng(0)
    matrices = {
        f"drafts.{step}.weight": (random.standard_normal((width, width)) / 4).astype(np.float32)
        for step in range(len(layers))
    }
    save_file(matrices, folder / MATRICES)
    record = Drafts(kind, len(layers), layers if kind == HIDDEN_TRANSFER else ())
    (folder / RECORD).write_bytes(msgspec.json.encode(record))
    return folder


def expected_drafts(folder: Path, text: list[int], origin: int) -> Any:
    """Logits [steps, vocab] after the token at `origin` of `text`, by transformers' own causal attention.

    Hidden transfer: the text ends at the origin, whose token follows again. Before the transfer layers their
    states are replaced by the pseudo states; attention is causal, so earlier tokens never depend on them.
    """
    import torch
    import transformers
    from safetensors.torch import load_file

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    record = msgspec.json.decode((folder / RECORD).read_bytes(), type=Drafts)
    matrices = load_file(folder / MATRICES)
    weights = [matrices[f"drafts.{step}.weight"] for step in range(record.steps)]
    head = model.get_output_embeddings()
    with torch.inference_mode():
        if record.kind != HIDDEN_TRANSFER:
            x = model.base_model(torch.tensor([text[: origin + 1]])).last_hidden_state[0, -1]
            return torch.stack([head(x + torch.nn.functional.silu(weight @ x)) for weight in weights]).numpy()
        depth = model.config.num_hidden_layers
        blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth)

        def replace(index: int) -> Any:
            def hook(block: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
                states = args[0].clone()
                x = states[:, origin]
                for step, (layer, weight) in enumerate(zip(record.layers, weights, strict=True)):
                    if layer == index:
                        states[:, origin + 1 + step] = x + x @ weight.T
                return (states, *args[1:])

            return hook

        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(replace(index))
        ids = torch.tensor([text[: origin + 1] + [text[origin]] * record.steps])  # for embeddings of each layer
        return model(ids, use_cache=False).logits[0, origin + 1 :].numpy()


TEXTS = [
    [72, 101, 108, 108, 111, 32, 119, 111],
    [84, 104, 101],
    [65, 32, 99, 97, 116, 32, 115, 97, 116, 32, 111, 110, 46],
]


def assert_expected_drafts(folder: Path, bundle: Path, relative: float) -> None:
    """Drafts of a padded batch, in decode steps, equal the source for first, middle and last tokens.

    `relative`: the largest error, to the largest logit.
    """
    opened = Bundle.open(bundle)
    found = stepwise_outputs(opened.model_path, decoder_of(opened), TEXTS)["draft_logits"]
    for text, drafts in zip(TEXTS, found, strict=True):
        for origin in {0, len(text) // 2, len(text) - 1}:
            expected = expected_drafts(folder, text, origin)
            np.testing.assert_allclose(drafts[origin], expected, atol=relative * np.abs(expected).max(), rtol=0)
