"""The source model of a decoder, as validation and the check of an export run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.decoders.check import AFTER_PAST, Batch, random_past
from intaglio.exporters.decoders.context import fix_frequencies
from intaglio.exporters.reference.check import Floats
from intaglio.exporters.reference.source_model import build_model, check_finite, source_errors
from intaglio.extras import load
from intaglio.networks.layer_kinds import CONVOLUTION, layer_kinds
from intaglio.networks.positions import first_position
from intaglio.runtime.sessions.step import ATTENTION_MASK, LOGITS, step_feeds

if TYPE_CHECKING:
    from intaglio.exporters.decoders.traceable_decoder import DecoderModule


def load_decoder(
    checkpoint: Checkpoint, family: Family, context: str | None = None, streamed: bool = False
) -> DecoderModule:
    """The checkpoint as a float32 `DecoderModule` in eval mode, with its drafts or early exit if any.

    `streamed`: as in `build_model`.
    """
    load("torch")
    from intaglio.exporters.decoders.traceable_decoder import trained_module

    model = source_model(checkpoint, family.architecture, context, streamed)
    module = trained_module(checkpoint, model).eval().requires_grad_(False)
    module.cached = sorted(module.cache_shapes())
    return module


def source_model(checkpoint: Checkpoint, architecture: str, context: str | None = None, streamed: bool = False) -> Any:
    """The checkpoint as a float32 model of `transformers`; `streamed`: as in `build_model`."""
    from intaglio.networks.blocks import blocks_path

    model = build_model(checkpoint, checkpoint.parameters(), architecture, blocks_path, streamed).eval()
    fix_frequencies(model, context)
    return model


def source_outputs(
    checkpoint: Checkpoint,
    architecture: str,
    decoder: Decoder,
    batch: Batch,
    cached: Sequence[int],
    past: int = 0,
    context: str | None = None,
) -> dict[str, list[Floats]]:
    """The source model's outputs by name, for each sequence, each run alone and in one pass.

    Logits are [tokens, vocab], also those of an early exit; those of drafts, if any, are [tokens, drafts, vocab]. The
    logits are those of `transformers` alone, without a cache. With `past`, the logits of `after_past` come last, by its
    own cache for the layers `cached`.
    """
    import torch
    import transformers

    from intaglio.exporters.decoders.traceable_decoder import trained_module

    with source_errors(checkpoint, architecture, Exception), torch.inference_mode():
        model = source_model(checkpoint, architecture, context, streamed=True)
        logits = [model(input_ids=torch.tensor([text]), use_cache=False).logits[0].float().numpy() for text in batch]
        if past:
            convolves = CONVOLUTION in layer_kinds(model.config)
            cache = transformers.DynamicCache(config=model.config if convolves else None)
            for layer, pair in zip(cached, random_past(decoder, past), strict=True):
                keys, values = map(torch.from_numpy, pair)
                if layer < len(cache.layers) and hasattr(cache.layers[layer], "update_conv_state"):
                    inputs = torch.cat([keys, values], -1)[:, 0].transpose(1, 2)
                    cache.update_conv_state(inputs, layer, conv_kernel_size=model.config.conv_L_cache)
                else:
                    cache.update(keys, values, layer)
            ids = torch.tensor([AFTER_PAST])
            positions = first_position(model) + past + torch.arange(ids.shape[1])[None]
            after = model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
            logits.append(after.logits[0].float().numpy())
        expected = {LOGITS: logits}
        if decoder.drafts or decoder.exit_layer:
            module = trained_module(checkpoint, model)
            module.cached = list(cached)
            further = [_further(module, decoder, text) for text in batch]
            expected[module.outputs[1]] = further
    check_finite(checkpoint, (array for arrays in expected.values() for array in arrays))
    return expected


def _further(module: DecoderModule, decoder: Decoder, text: list[int]) -> Floats:
    """The output [tokens, ..., vocab] of drafts or an early exit for a sequence that is run in one pass."""
    import torch

    feeds = step_feeds(decoder, np.array([text]))
    capacity = feeds[ATTENTION_MASK.name].shape[2]
    caches = [
        np.zeros((1, cache.heads, capacity, dim), np.float32)
        for cache in decoder.layer_caches
        for dim in (cache.key_dim, cache.value_dim)
    ]
    found: Floats = module(*map(torch.from_numpy, [*feeds.values(), *caches]))[1][0].numpy()
    return found
