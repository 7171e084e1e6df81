"""The tokenizer of a model for images and texts is the one of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_encoders import write_letter_tokenizer

from intaglio.errors import SourceError
from intaglio.exporters.vision.text_tower import _check_tokenizer
from intaglio.runtime.text.tokenizer import Tokenizer


def library_tokenizer(folder: Path) -> Any:
    import transformers

    write_letter_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_tokenizer_that_is_changed_by_its_class_is_refused(tmp_path: Path) -> None:
    """As that of SigLIP without a complete tokenizer.json: its class removes punctuation first."""
    checkpoint: Any = SimpleNamespace(folder=tmp_path)
    library = library_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    _check_tokenizer(checkpoint, library, Tokenizer(path, ["input_ids"], None))
    settings = json.loads(path.read_text())
    settings["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(settings))
    with pytest.raises(SourceError, match=r"has other tokens for '.*' than its tokenizer\.json\. Export a model"):
        _check_tokenizer(checkpoint, library, Tokenizer(path, ["input_ids"], None))
