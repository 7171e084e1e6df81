"""Batches of texts: right-padded to the longest, regardless of the tokenizer file's settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError
from intaglio.exporters import export
from intaglio.runtime import run
from intaglio.runtime.text.inputs import load_inputs
from intaglio.runtime.text.tokenizer import Tokenizer

Adopt = Callable[..., Path]
TEXTS = ["a b c d e", "a", "a b"]
FIXED = {
    "strategy": {"Fixed": 16},
    "pad_to_multiple_of": 8,
    "direction": "Left",
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}
CUT = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}


@pytest.fixture
def adopt(tiny_bundle: Path, tmp_path: Path) -> Adopt:
    """Import the tiny model's graph as another tool's, with a changed tokenizer.json and files beside it."""

    def make(beside: dict[str, Any] | None = None, **changed: Any) -> Path:
        source = Path(shutil.copytree(tiny_bundle, tmp_path / "source"))
        for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
            (source / name).unlink(missing_ok=True)
        for name, content in (beside or {}).items():
            (source / name).write_text(content if isinstance(content, str) else json.dumps(content))
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        (source / "tokenizer.json").write_text(json.dumps({**tokenizer, **changed}))
        export(str(source / "model.onnx"), tmp_path / "adopted")
        return tmp_path / "adopted"

    return make


@pytest.mark.parametrize("padding", [None, {**FIXED, "pad_id": 0}])
def test_texts_are_padded_on_the_right_for_any_file(
    padding: dict[str, Any] | None, adopt: Adopt, tiny_bundle: Path
) -> None:
    bundle = adopt(padding=padding)
    feeds = Tokenizer.open(Bundle.open(bundle)).feeds(TEXTS)
    expected = Tokenizer.open(Bundle.open(tiny_bundle)).feeds(TEXTS)
    assert feeds["attention_mask"].tolist() == [[1] * 7, [1] * 3 + [0] * 4, [1] * 4 + [0] * 3]
    for name, array in expected.items():
        np.testing.assert_array_equal(feeds[name], array)
    found = np.array([result.embedding for result in run(bundle, TEXTS)])
    np.testing.assert_array_equal(found, np.array([result.embedding for result in run(tiny_bundle, TEXTS)]))
    (batch,), _ = load_inputs(Bundle.open(bundle), None, 4, 4)
    assert batch["input_ids"].shape[0] == 4


@pytest.mark.parametrize(
    ("step", "least", "most", "length"), [(1, 0, 9, 7), (4, 0, 9, 8), (4, 9, 16, 12), (8, 0, 7, 7), (5, 9, 9, 9)]
)
def test_lengths_are_rounded_up_within_the_limit(
    tiny_bundle: Path, step: int, least: int, most: int, length: int
) -> None:
    tokenizer = Tokenizer.open(Bundle.open(tiny_bundle))
    tokenizer.max_length = most
    sequences = tokenizer.encode(TEXTS)
    feeds, alone = tokenizer.pad(sequences, step, least), tokenizer.pad(sequences)
    for name, array in feeds.items():
        assert array.shape == (3, length)
        np.testing.assert_array_equal(array[:, :7], alone[name])
        assert (array[:, 7:] == 0).all()


@pytest.mark.parametrize(
    ("beside", "pad"),
    [
        ({"special_tokens_map.json": {"pad_token": "[UNK]"}}, 1),
        ({"special_tokens_map.json": {"pad_token": {"content": "[SEP]"}}, "config.json": {"pad_token_id": 7}}, 3),
        ({"tokenizer_config.json": {"pad_token": "[MASK]"}}, 4),
        ({"tokenizer_config.json": {"pad_token": "<none such>"}, "config.json": {"pad_token_id": 7}}, 7),
        ({"config.json": {"pad_token_id": -1}}, 0),
        ({"config.json": {"pad_token_id": 2**70}}, 0),
        ({}, 0),
    ],
)
def test_padding_token_comes_from_the_configuration_files(beside: dict[str, Any], pad: int, adopt: Adopt) -> None:
    feeds = Tokenizer.open(Bundle.open(adopt(beside, padding=None))).feeds(TEXTS)
    assert feeds["input_ids"][1, 3:].tolist() == [pad] * 4


def test_padding_token_may_have_any_id(adopt: Adopt, tmp_path: Path) -> None:
    path = adopt(padding=None) / "tokenizer.json"
    content = path.read_text().replace('"[PAD]":0', '"<none>":0').replace('"[PAD]": 0', '"<none>": 0')
    tokens = json.loads(content)
    tokens["model"]["vocab"]["<pad>"] = len(tokens["model"]["vocab"])
    tokens["added_tokens"] = [token for token in tokens["added_tokens"] if token["content"] != "[PAD]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens))
    made = Tokenizer(tmp_path / "tokenizer.json", ["input_ids"], None)
    assert made.pad_token_id == tokens["model"]["vocab"]["<pad>"] > 0
    assert made.feeds(TEXTS)["input_ids"][1, 3:].tolist() == [made.pad_token_id] * 4


def test_text_is_truncated_only_on_request(adopt: Adopt) -> None:
    tokenizer = Tokenizer.open(Bundle.open(adopt(padding=None, truncation=CUT)))
    assert tokenizer.feeds(TEXTS)["input_ids"].shape == (3, 7)
    assert len(tokenizer.backend.encode(TEXTS[0]).ids) == 7
    assert tokenizer.feeds(TEXTS, truncate=True)["input_ids"].shape == (3, 4)
    assert tokenizer.feeds(TEXTS)["input_ids"].shape == (3, 7)


def test_giant_configuration_file_is_rejected_unread(adopt: Adopt) -> None:
    bundle = Bundle.open(adopt({"special_tokens_map.json": "{}" + " " * (8 << 20)}, padding=None))
    with pytest.raises(BundleError, match=r"special_tokens_map\.json: 8388610 bytes, expected at most 8388608"):
        Tokenizer.open(bundle)


def test_damaged_configuration_file_is_named(adopt: Adopt) -> None:
    bundle = Bundle.open(adopt({"special_tokens_map.json": "{"}, padding=None))
    with pytest.raises(BundleError, match=r"special_tokens_map\.json: not readable JSON"):
        Tokenizer.open(bundle)
