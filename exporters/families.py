"""The families that can be exported, by kind."""

from __future__ import annotations

from intaglio.exporters.decoders.traced.family import TracedFamily
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
# Those that may be exported without the check; `find_traced` finds all others, and quantised ones of these.
DECODERS = tuple(
    TracedFamily(model_type, architecture, proven=True)
    for model_type, architecture in (
        ("gpt2", "GPT2LMHeadModel"),
        ("opt", "OPTForCausalLM"),
        ("llama", "LlamaForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
    )
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
