"""The families that can be exported, and the lookup by config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.config import integer
from intaglio.exporters.decoders import gpt2, llama, mistral, opt, qwen2, qwen3
from intaglio.exporters.decoders.family import DecoderFamily
from intaglio.exporters.encoder_decoders import mt5, t5
from intaglio.exporters.encoder_decoders.family import EncoderDecoderFamily
from intaglio.exporters.encoders import bert, distilbert, roberta
from intaglio.exporters.encoders.family import Family
from intaglio.exporters.speech import conformer, squeezeformer
from intaglio.exporters.speech.family import SpeechFamily

ENCODERS = (
    bert.FAMILY,
    distilbert.FAMILY,
    roberta.FAMILY,
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
)
SPEECH = (
    conformer.FAMILY,
    squeezeformer.FAMILY,
)


def families() -> dict[str, Family]:
    """Every supported family of encoders by its `model_type`."""
    return {family.model_type: family for family in ENCODERS}


def decoder_families() -> dict[str, DecoderFamily]:
    """Every supported family of decoders by its `model_type`."""
    return {family.model_type: family for family in DECODERS}


def encoder_decoder_families() -> dict[str, EncoderDecoderFamily]:
    """Every supported family of encoder-decoders by its `model_type`."""
    return {family.model_type: family for family in ENCODER_DECODERS}


def find_decoder(config: Mapping[str, Any]) -> DecoderFamily | None:
    """The family of a config.json whose architecture is a decoder with a language model's head, or None."""
    family = decoder_families().get(str(config.get("model_type")))
    listed = config.get("architectures") or ([family.architecture] if family else [])
    return family if family and listed == [family.architecture] else None


def find_encoder_decoder(config: Mapping[str, Any]) -> EncoderDecoderFamily | None:
    """The family of a config.json whose architecture is an encoder-decoder with a language model's head, or None."""
    family = encoder_decoder_families().get(str(config.get("model_type")))
    listed = config.get("architectures") or ([family.architecture] if family else [])
    return family if family and listed == [family.architecture] else None


def find_speech(config: Mapping[str, Any]) -> SpeechFamily | None:
    """The family of a speech recogniser's config.json, or None."""
    return next((family for family in SPEECH if family.model_type == config.get("model_type")), None)


def find_family(config: Mapping[str, Any], where: str) -> tuple[Family, str]:
    """The family of a config.json and the architecture to export. Raises `SourceError` listing what is supported."""
    encoders = [name for family in ENCODERS for name in family.architectures]
    decoders = [family.architecture for family in DECODERS]
    both = [family.architecture for family in ENCODER_DECODERS]
    speech = [family.architecture for family in SPEECH]
    supported = ", ".join([*encoders, *decoders, *both, *speech])
    family = families().get(str(config.get("model_type")))
    listed = config.get("architectures") or ([family.base] if family else [])
    architecture = str(listed[0]) if isinstance(listed, list) and listed else str(listed)
    if family is None or architecture not in family.architectures:
        raise SourceError(
            f"{where}: architecture {architecture or config.get('model_type')} is not supported. "
            f"Supported are: {supported}."
        )
    if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
        raise SourceError(f"{where}: position embeddings of type {positions!r} are not supported, only 'absolute'.")
    for key in ("num_hidden_layers", "n_layers"):
        integer(config, key, 1, default=1)
    return family, architecture
