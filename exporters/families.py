"""The families that can be exported, and the lookup by config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from intaglio.display.nearest import nearest
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.config import integer
from intaglio.exporters.decoders import gpt2, llama, mistral, opt, qwen2, qwen3
from intaglio.exporters.decoders.family import DecoderFamily
from intaglio.exporters.encoder_decoders import mt5, t5
from intaglio.exporters.encoder_decoders.family import EncoderDecoderFamily
from intaglio.exporters.encoders import bert, camembert, causal, distilbert, roberta, xlm_roberta
from intaglio.exporters.encoders.family import Family
from intaglio.exporters.speech import conformer, squeezeformer
from intaglio.exporters.speech.family import SpeechFamily

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
)
SPEECH = (
    conformer.FAMILY,
    squeezeformer.FAMILY,
)

PAGE = "docs/reference.md, section 'What can be exported'"
OTHER_TOOLS = {  # a key of config.json -> the tool that writes it
    "_class_name": "diffusers",
    "pretrained_cfg": "timm",
    "model_cfg": "OpenCLIP",
    "add_source_bos": "CTranslate2",
    "conv_template": "MLC",
    "n_kv_heads": "Mistral or Meta",
}
IMAGE_KEYS = {"image_size", "vision_config", "num_channels", "image_token_id", "image_token_index"}
LLAMA_KEYS = {"rms_norm_eps", "num_key_value_heads", "rope_theta"}  # of most later decoders
SPEECH_KEYS = {"num_mel_bins", "feat_extract_norm", "conv_kernel", "audio_config", "num_feat_extract_layers"}


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
    return family if family and (_listed(config) or family.architecture) == family.architecture else None


def find_encoder_decoder(config: Mapping[str, Any]) -> EncoderDecoderFamily | None:
    """The family of a config.json whose architecture is an encoder-decoder with a language model's head, or None."""
    family = encoder_decoder_families().get(str(config.get("model_type")))
    return family if family and (_listed(config) or family.architecture) == family.architecture else None


def find_speech(config: Mapping[str, Any]) -> SpeechFamily | None:
    """The family of a speech recogniser's config.json, or None."""
    return next((family for family in SPEECH if family.model_type == config.get("model_type")), None)


def find_sentence_family(config: Mapping[str, Any], where: str) -> Family:
    """The family of the Transformer of a sentence-transformers folder, for any head that its config.json lists.

    Raises `SourceError` that lists the supported ones.
    """
    known = families() | {family.model_type: family for family in causal.FAMILIES}
    model_type = str(config.get("model_type"))
    family = known.get(model_type)
    if family is None:
        if model_type not in _supported().values():
            raise not_supported(config, where)
        raise SourceError(
            f"{where}: model_type {model_type} is not supported in a sentence-transformers "
            f"folder. Supported are: {', '.join(known)}."
        )
    for key, accepted in (("is_causal", True), ("use_bidirectional_attention", False)):
        if family.causal and config.get(key, accepted) is not accepted:
            raise SourceError(f"{where}: config.json: {key} is not supported for {family.base}. Choose another model.")
    _check_positions(config, where)
    return family


def find_family(config: Mapping[str, Any], where: str) -> tuple[Family, str]:
    """The family of a config.json and the architecture to export. Raises `SourceError` if it is not an encoder's."""
    family, architecture = families().get(str(config.get("model_type"))), _listed(config)
    architecture = architecture or (family.base if family else "")
    if family is None or architecture not in family.architectures:
        raise not_supported(config, where)
    _check_positions(config, where)
    return family, architecture


def _check_positions(config: Mapping[str, Any], where: str) -> None:
    """Raise `SourceError` for position embeddings that are not supported, and impossible numbers of layers."""
    if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
        raise SourceError(f"{where}: position embeddings of type {positions!r} are not supported, only 'absolute'.")
    for key in ("num_hidden_layers", "n_layers"):
        integer(config, key, 1, default=1)


def check_supported(config: Mapping[str, Any], where: str) -> None:
    """Raise `SourceError` unless the architecture of a config.json is one that can be exported."""
    if not (find_speech(config) or find_decoder(config) or find_encoder_decoder(config)):
        find_family(config, where)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The architecture of a supported config.json: the listed one, or that of its family."""
    model_type = str(config.get("model_type"))
    if encoder := families().get(model_type):
        return _listed(config) or encoder.base
    family = find_decoder(config) or find_encoder_decoder(config) or find_speech(config)
    return family.architecture if family else _listed(config)  # a decoder without a head, of sentence-transformers


def _listed(config: Mapping[str, Any]) -> str:
    """The first architecture that a config.json lists; "" if none."""
    listed = config.get("architectures") or ""
    return str(listed[0]) if isinstance(listed, list) else str(listed)


def not_supported(config: Mapping[str, Any], where: str) -> SourceError:
    """The error for an architecture that cannot be exported, with the nearest one that can."""
    model_type, listed = config.get("model_type"), _listed(config)
    if not isinstance(model_type, str) or not model_type:
        tool = next((f", but of {tool}" for key, tool in OTHER_TOOLS.items() if key in config), "")
        of = f'Add "model_type": "{_supported()[listed]}" to it.' if listed in _supported() else ""
        return SourceError(
            f"{where}: config.json has no model_type, so it does not describe a transformers model{tool}. "
            f"{of or 'Give the checkpoint in the format of transformers.'} What can be exported: {PAGE}."
        )
    architecture = listed or model_type
    own_code = " Its code comes with it (auto_map) and is not run." if config.get("auto_map") else ""
    nearest = _nearest(architecture, model_type, config)
    return SourceError(
        f"{where}: architecture {architecture[:80]} is not supported.{own_code} {nearest} What can be exported: {PAGE}."
    )


def _nearest(architecture: str, model_type: str, config: Mapping[str, Any]) -> str:
    """A sentence with the nearest supported architecture: of the same family, else with the same head."""
    if IMAGE_KEYS & config.keys():
        return "No model that reads images is."
    supported = _supported()
    names = [name for name, family in supported.items() if family == model_type]
    head = re.search("For[A-Z].*|LMHeadModel|Model$", architecture)
    if not names and SPEECH_KEYS & config.keys():
        names = [family.architecture for family in SPEECH]
    if not names and head:
        names = [name for name in supported if name.endswith(head[0])]
    if llama.FAMILY.architecture in names and LLAMA_KEYS & config.keys():
        names = [llama.FAMILY.architecture]
    if not names:
        like = nearest(model_type, supported.values(), cutoff=0)
        names = [name for name, family in supported.items() if family == like]
    name = nearest(architecture, names, cutoff=0)
    assert name is not None  # there are names, and any similarity counts
    return f"The nearest supported one is {name} ({supported[name]})."


def _supported() -> dict[str, str]:
    """Every architecture that can be exported -> its `model_type`."""
    encoders = {name: family.model_type for family in ENCODERS for name in family.architectures}
    return encoders | {family.architecture: family.model_type for family in (*DECODERS, *ENCODER_DECODERS, *SPEECH)}
