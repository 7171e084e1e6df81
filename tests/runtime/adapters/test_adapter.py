"""Adapters that are no mere change of products, or damaged, are refused in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_adapters import change_settings, change_tensors, save_adapter
from tiny_decoders import save_decoder

from intaglio.errors import IntaglioError, SourceError, UsageError
from intaglio.runtime.adapters.adapter import read_adapter
from intaglio.runtime.adapters.adapters import Adapters

Once = Callable[[str, Callable[[Path], object]], Path]
MERGE = "Merge it: intaglio export MODEL -o BUNDLE --adapter DIR"


@pytest.fixture(scope="module")
def checkpoint(once: Once) -> Path:
    return once("side-paths/llama", lambda path: save_decoder(path, "llama", tie_word_embeddings=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "use_dora is 'True'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is \"\\['lm_head'\\]\""),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is '\\[1\\]'"),
        ({"target_modules": ["embed_tokens"]}, "is a weight of the model itself"),
        ({"lora_bias": True}, "lora_bias is 'True', which is not supported"),
        ({"bias": "all", "target_modules": ["q_proj"]}, "bias is 'all'"),
        ({"target_modules": ["lm_head"]}, "is a weight of the model itself"),
    ],
)
def test_other_changes_are_refused_by_name(
    options: dict[str, Any], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    save_adapter(checkpoint, tmp_path, **options)
    with pytest.raises(SourceError, match=message) as refused:
        read_adapter(tmp_path)
    assert "\n" not in str(refused.value)
    assert MERGE in str(refused.value) or "merge_and_unload" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers__0__self_attn__q_proj__lora_A__weight": None}, "q_proj has no lora_A, expected both"),
        ({"q_proj__lora_A__weight": lambda tensor: tensor[:2]}, "rank 2 and 4, expected 4"),
        ({"q_proj__lora_B__weight": lambda tensor: tensor[:, :, None, None]}, "expected a matrix of a linear layer"),
        ({"q_proj__lora_B__weight": lambda tensor: tensor * float("inf")}, "numbers that are not finite"),
        ({"q_proj__lora_B__weight": lambda tensor: tensor.int()}, "is int32, expected floating point"),
    ],
)
def test_damaged_tensors_are_refused(changes: dict[str, Any], message: str, checkpoint: Path, tmp_path: Path) -> None:
    save_adapter(checkpoint, tmp_path)
    change_tensors(tmp_path, **changes)
    with pytest.raises(SourceError, match=message):
        read_adapter(tmp_path)


def test_pickles_and_folders_without_an_adapter_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    save_adapter(checkpoint, tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").rename(tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(SourceError, match="a pickle, which can run code"):
        read_adapter(tmp_path / "a")
    with pytest.raises(SourceError, match=r"no adapter_config.json in it"):
        read_adapter(checkpoint)


def test_names_are_visible_and_without_colon(tmp_path: Path) -> None:
    for name in ("", "a:b", "a\n", " a"):
        with pytest.raises(UsageError, match="expected a name of visible characters"):
            Adapters.read({name: tmp_path})


def test_adapters_of_two_models_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    save_decoder(tmp_path / "other", "llama", num_key_value_heads=4)
    folders = {"a": save_adapter(checkpoint, tmp_path / "a"), "b": save_adapter(tmp_path / "other", tmp_path / "b")}
    with pytest.raises(IntaglioError, match="they change products of different sizes"):
        Adapters.read(folders)


def test_numbers_in_half_precision_are_read(checkpoint: Path, tmp_path: Path) -> None:
    import torch

    save_adapter(checkpoint, tmp_path)
    expected = read_adapter(tmp_path)
    change_tensors(tmp_path, weight=lambda tensor: tensor.to(torch.bfloat16))
    change_settings(tmp_path, lora_alpha=12)
    for module, change in read_adapter(tmp_path).items():
        np.testing.assert_allclose(change.first, expected[module].first, rtol=2**-8)
        np.testing.assert_allclose(change.second, expected[module].second, rtol=2**-8)
        assert change.factor == 2 * expected[module].factor
