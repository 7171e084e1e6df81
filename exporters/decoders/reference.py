"""The source model of a decoder, as validation and the check of an export run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.decoders.check import Batch
from intaglio.exporters.decoders.family import DecoderFamily
from intaglio.exporters.reference.check import Floats
from intaglio.exporters.reference.source_model import build_model, check_finite, source_errors
from intaglio.extras import load
from intaglio.networks.early_exit import EVERY
from intaglio.runtime.sessions.step import ATTENTION_MASK, DRAFT_LOGITS, EXIT_LOGITS, LOGITS, step_feeds

if TYPE_CHECKING:
    from intaglio.exporters.decoders.module import DecoderModule


def load_decoder(checkpoint: Checkpoint, family: DecoderFamily, streamed: bool = False) -> DecoderModule:
    """The checkpoint as a float32 `DecoderModule` in eval mode, with its drafts or early exit if any.

    `streamed`: as in `build_model`.
    """
    load("torch")
    from intaglio.exporters.decoders.module import DecoderModule, DraftedModule, EarlyExitModule, SaturationModule

    model = build_model(checkpoint, checkpoint.tensors(), family.architecture, family.blocks, streamed)
    drafts = checkpoint.drafts(model.config.num_hidden_layers)
    matrices = {name: mapped.tensor for name, mapped in checkpoint.draft_tensors().items()}
    early_exit = checkpoint.early_exit(model.config.num_hidden_layers)
    if drafts:
        module: DecoderModule = DraftedModule(model, drafts, matrices)
    elif early_exit is None:
        module = DecoderModule(model)
    elif early_exit.layer == EVERY:
        module = SaturationModule(model, model.get_submodule(family.blocks))
    else:
        module = EarlyExitModule(model, early_exit.layer)
    return module.eval().requires_grad_(False)


def source_outputs(
    checkpoint: Checkpoint, family: DecoderFamily, decoder: Decoder, batches: list[Batch]
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """The source model's outputs by name, for each sequence of each batch, each run alone and in one pass.

    Logits are [tokens, vocab], also those of an early exit; those of drafts, if any, are [tokens, drafts, vocab].
    """
    import torch

    from intaglio.exporters.decoders.module import EarlyExitModule

    texts = [text for batch in batches for text in batch]
    with source_errors(checkpoint, family.architecture, RuntimeError, IndexError), torch.inference_mode():
        module = load_decoder(checkpoint, family, streamed=True)
        expected = {LOGITS: [module.logits(torch.tensor([text]))[0].numpy() for text in texts]}
        if decoder.drafts:
            expected[DRAFT_LOGITS] = [_drafts(module, decoder, text) for text in texts]
        if isinstance(module, EarlyExitModule):
            expected[EXIT_LOGITS] = [module.exit_logits(torch.tensor([text]))[0].numpy() for text in texts]
    check_finite(checkpoint, (array for arrays in expected.values() for array in arrays))
    return expected


def _drafts(module: DecoderModule, decoder: Decoder, text: list[int]) -> Floats:
    """The drafts [tokens, drafts, vocab] of the source model for a sequence that is run in one pass."""
    import torch

    ids = np.array([text])
    feeds = step_feeds(decoder, ids)
    shape = (1, decoder.kv_heads, feeds[ATTENTION_MASK.name].shape[2], decoder.head_dim)
    caches = [np.zeros(shape, np.float32)] * (2 * decoder.layers)
    outputs = module(*map(torch.from_numpy, [*feeds.values(), *caches]))
    drafts: Floats = outputs[1][0].numpy()
    return drafts
