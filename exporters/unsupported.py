"""The error for a checkpoint that cannot be exported: what it is, and the nearest architecture that can."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.display.nearest import nearest
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.exporters.encoder_decoders.speech.family import WHISPER
from intaglio.exporters.families import SPEECH

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
LLAMA = "LlamaForCausalLM"
LLAMA_KEYS = {"rms_norm_eps", "num_key_value_heads", "rope_theta"}  # of most later decoders
SPEECH_KEYS = {"num_mel_bins", "feat_extract_norm", "conv_kernel", "audio_config", "num_feat_extract_layers"}


def not_supported(config: Mapping[str, Any], where: str, supported: Mapping[str, str]) -> SourceError:
    """The error for an architecture that cannot be exported, with the nearest one that can.

    `supported`: every architecture that can be exported -> its `model_type`.
    """
    model_type, listed = config.get("model_type"), listed_architecture(config)
    if not isinstance(model_type, str) or not model_type:
        tool = next((f", but of {tool}" for key, tool in OTHER_TOOLS.items() if key in config), "")
        of = f'Add "model_type": "{supported[listed]}" to it.' if listed in supported else ""
        return SourceError(
            f"{where}: config.json has no model_type, so it does not describe a transformers model{tool}. "
            f"{of or 'Give the checkpoint in the format of transformers.'} What can be exported: {PAGE}."
        )
    architecture = listed or model_type
    own_code = " Its code comes with it (auto_map) and is not run." if config.get("auto_map") else ""
    nearest = _nearest(architecture, model_type, config, supported)
    return SourceError(
        f"{where}: architecture {architecture[:80]} is not supported.{own_code} {nearest} What can be exported: {PAGE}."
    )


def _nearest(architecture: str, model_type: str, config: Mapping[str, Any], supported: Mapping[str, str]) -> str:
    """A sentence with the nearest supported architecture: of the same family, else with the same head."""
    if IMAGE_KEYS & config.keys():
        return "Of models that read images, classifiers, encoders, SmolVLM and Idefics3 are; see docs/vision.md."
    names = [name for name, family in supported.items() if family == model_type]
    head = re.search("For[A-Z].*|LMHeadModel|Model$", architecture)
    if not names and SPEECH_KEYS & config.keys():
        names = [family.architecture for family in (*SPEECH, WHISPER)]
    if not names and head:
        names = [name for name in supported if name.endswith(head[0])]
    if LLAMA in names and LLAMA_KEYS & config.keys():
        names = [LLAMA]
    if not names:
        like = nearest(model_type, supported.values(), cutoff=0)
        names = [name for name, family in supported.items() if family == like]
    name = nearest(architecture, names, cutoff=0)
    assert name is not None  # there are names, and any similarity counts
    return f"The nearest supported one is {name} ({supported[name]})."


def not_supported_in_sentence_folder(config: Mapping[str, Any], where: str, known: Sequence[Family]) -> SourceError:
    """The error for a model that can be exported, but not as the Transformer of a sentence-transformers folder."""
    return SourceError(
        f"{where}: model_type {config.get('model_type')} is not supported in a sentence-transformers "
        f"folder. Supported are: {', '.join(family.model_type for family in known)}."
    )
