"""The families that can be exported, by kind."""

from __future__ import annotations

from intaglio.exporters.decoders.written import gpt2, llama, mistral, opt, qwen2, qwen3
from intaglio.exporters.encoder_decoders.written import mt5, t5, umt5
from intaglio.exporters.encoders import bert, camembert, distilbert, roberta, xlm_roberta
from intaglio.exporters.speech import conformer, squeezeformer

ENCODERS = (
    bert.FAMILY,
    distilbert.FAMILY,
    roberta.FAMILY,
    xlm_roberta.FAMILY,
    camembert.FAMILY,
)
DECODERS = (
    gpt2.FAMILY,
    opt.FAMILY,
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
)
ENCODER_DECODERS = (
    t5.FAMILY,
    mt5.FAMILY,
    umt5.FAMILY,
)
SPEECH = (
    conformer.FAMILY,
    squeezeformer.FAMILY,
)
