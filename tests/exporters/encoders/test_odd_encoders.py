"""Encoders that cannot be exported are refused by name, in one line; decoders of the same types are decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_folders import edit
from tiny_encoders import CLASSES, save_encoder

from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.decoders.traced.family import TracedFamily
from intaglio.exporters.encoders.traced import TracedEncoder
from intaglio.exporters.kinds import find_kind

REFUSED = {
    "fnet": ({}, "FNetModel is not supported: it takes no attention_mask"),
    "mra": ({}, "MraModel is not supported: it computes its attention by kernels for CUDA"),
    "yoso": ({}, "YosoModel is not supported: it computes its attention by kernels for CUDA"),
    "layoutlm": ({}, "LayoutLMModel is not supported: it reads the places of words on a page"),
    "tapas": ({}, "TapasModel is not supported: it reads the places of words in a table"),
    "roc_bert": ({}, "RoCBertModel is not supported: it reads the shapes of characters"),
    "perceiver": ({}, "PerceiverModel is not supported: it takes no input_ids"),
    "big_bird": ({}, "BigBirdModel is not supported: it attends to parts of long texts only"),
    "xlm": ({"use_lang_emb": True, "n_langs": 2}, "XLMModel is not supported: it reads the language beside a text"),
    "flaubert": ({"causal": True}, "FlaubertModel is not supported: it is configured as a decoder"),
    "electra": ({"is_decoder": True}, "ElectraModel is not supported: it is configured as a decoder"),
    "eurobert": (
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "EuroBertModel is not supported: it has rotary embeddings of type 'dynamic'",
    ),
    "albert": ({"hidden_size": "wide"}, "config.json is not valid"),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_unsupported_encoder_is_named(model_type: str) -> None:
    settings, expected = REFUSED[model_type]
    with pytest.raises(SourceError) as raised:
        find_kind({"model_type": model_type, **settings, **_listed(expected)}, "folder")
    assert expected in str(raised.value) and "\n" not in str(raised.value)


def _listed(message: str) -> dict[str, Any]:
    """The key of config.json with the architecture that a message names."""
    name = message.split()[0]
    return {"architectures": [name]} if name.endswith("Model") else {}


def test_unsupported_head_is_named_with_those_that_are() -> None:
    config = {"model_type": "electra", "architectures": ["ElectraForMultipleChoice"]}
    with pytest.raises(SourceError, match=r"ElectraForMultipleChoice is not supported\. The nearest .* is Electra"):
        find_kind(config, "folder")


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "electra", "architectures": ["ElectraForCausalLM"], "is_decoder": True}, TracedFamily),
        ({"model_type": "electra", "is_decoder": True}, TracedFamily),
        ({"model_type": "electra", "architectures": ["ElectraForMaskedLM"]}, TracedEncoder),
        ({"model_type": "deberta-v2"}, TracedEncoder),  # as microsoft/deberta-v3-base, which lists no architecture
        ({"model_type": "modernbert-decoder", "architectures": ["ModernBertDecoderForCausalLM"]}, TracedFamily),
    ],
)
def test_encoder_or_decoder_is_told_by_the_configuration(config: dict[str, Any], family: type) -> None:
    assert type(find_kind(config, "folder")[1]) is family


def test_check_cannot_be_left_out(tmp_path: Path) -> None:
    checkpoint = save_encoder(tmp_path / "checkpoint", "electra")
    with pytest.raises(UsageError, match="--no-check: the graph of a ElectraModel is traced"):
        export(str(checkpoint), tmp_path / "bundle", check=False)


def test_model_that_fails_on_other_lengths_is_refused(tmp_path: Path) -> None:
    """Segments of a fixed length are averaged."""
    checkpoint = save_encoder(tmp_path / "checkpoint", "nystromformer", num_landmarks=8, segment_means_seq_len=64)
    with pytest.raises(SourceError, match="NystromformerModel could not be run, so it is not supported"):
        export(str(checkpoint), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.proof
def test_model_that_cannot_be_traced_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = save_encoder(tmp_path / "checkpoint", "longformer", attention_window=8)
    capfd.readouterr()
    with pytest.raises(SourceError, match="LongformerModel could not be traced, so it is not supported"):
        export(str(checkpoint), tmp_path / "bundle")
    assert capfd.readouterr() == ("", "")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    """A model without its classifier, whose weights the library would make up."""
    checkpoint = save_encoder(tmp_path / "checkpoint", "electra")
    edit(checkpoint / "config.json", architectures=[f"Electra{CLASSES}"])
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "electra"
    with pytest.raises(SourceError, match=r"weights of ElectraForSequenceClassification are missing.*classifier"):
        export(str(checkpoint), tmp_path / "bundle")
