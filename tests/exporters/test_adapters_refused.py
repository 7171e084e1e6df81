"""Adapters that are damaged, of another model or of another kind: one line says what, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import CONFIG, WEIGHTS, change_settings, change_tensors, save_adapter
from tiny_decoders import save_decoder

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.adapters import open_adapter
from intaglio.exporters.checkpoints.checkpoint import Checkpoint

Once = Callable[[str, Callable[[Path], object]], Path]
Program = Callable[..., tuple[int, str, str]]
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"peft_type": "IA3"}, "peft_type is 'IA3', expected 'LORA'"),
    "no type": ({"peft_type": None}, "peft_type is None, expected"),
    "repeated layers": ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication is"),
    "a bias of B": ({"lora_bias": True}, "lora_bias is 'True', which is not supported"),
    "QALoRA": ({"use_qalora": True}, "use_qalora is"),
    "invocation tokens": ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is"),
    "routed": ({"arrow_config": {"top_k": 1}}, "arrow_config is"),
    "parameters": ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters is"),
    "a setting of next year": ({"use_xlora": 3}, "use_xlora is '3'"),
    "a changed base": ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
    "text for a rank": ({"r": "8"}, "Expected `int`"),
    "rank zero": ({"r": 0}, "Expected `int` >= 1"),
    "another rank": ({"r": 8}, r"have rank 4 and 4, expected 8, as r and rank_pattern say"),
    "an unknown bias": ({"bias": "some"}, "bias is 'some'"),
    "a wrong pattern": ({"rank_pattern": {"q_proj)": 4}}, "is not valid"),
    "a slow pattern": ({"alpha_pattern": {"(a+)+b": 4}}, "can take long to match"),
    "without magnitudes": ({"use_dora": True}, "expected A, B, magnitude, as use_dora is true"),
}
TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "A alone": ({"layers__0__self_attn__q_proj__lora_B__weight": None}, "q_proj has the tensors A of LoRA"),
    "nothing": ({"weight": None}, "no tensors in it"),
    "another layer": ({"layers__1__self_attn__q_proj__lora_A__weight": "layers.7.self_attn.q_proj.lora_A.weight",
                       "layers__1__self_attn__q_proj__lora_B__weight": "layers.7.self_attn.q_proj.lora_B.weight"},
                      r"layers\.7\.self_attn\.q_proj\.weight is not in the checkpoint"),
    "another method": ({"layers__0__self_attn__q_proj__lora_A__weight": "layers.0.self_attn.q_proj.hada_w1_a"},
                       "q_proj has the tensors B of LoRA"),
    "an unknown tensor": ({"lm_head__weight": "lm_head.scale"}, r"lm_head\.scale is not in the checkpoint"),
    "other inputs": ({"v_proj__lora_A__weight": lambda each: each[:, :8]}, r"v_proj\.weight is \[16, 8\], expected"),
    "other outputs": ({"v_proj__lora_B__weight": lambda each: each[:8]}, r"v_proj\.weight is \[8, 32\], expected"),
    "ranks apart": ({"v_proj__lora_B__weight": lambda each: each[:, :2]}, "have rank 4 and 2"),
    "a vector": ({"v_proj__lora_B__weight": lambda each: each[:, 0]}, r"is changed by a tensor \[16\]"),
    "a convolution": ({"v_proj__lora_A__weight": lambda each: each[:, :, None]}, "Convolutions are not merged"),
    "added tokens": ({"lm_head__weight": lambda each: each.repeat(2, 1)}, r"resize_token_embeddings\(544\)"),
    "integers": ({"lm_head__weight": lambda each: each.int()}, "is int32, expected floating point"),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(once: Once) -> Path:
    return once("adapters/llama", lambda path: save_decoder(path, "llama"))


@pytest.fixture
def adapter(checkpoint: Path, tmp_path: Path) -> Path:
    return save_adapter(checkpoint, tmp_path / "adapter", modules_to_save=["lm_head"])


def merge(checkpoint: Path, adapter: Path) -> None:
    """Merge it, as `export` does."""
    Checkpoint.open(str(checkpoint)).with_adapter(open_adapter(adapter), "LlamaForCausalLM").tensors()


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_not_merged(name: str, checkpoint: Path, adapter: Path) -> None:
    settings, says = SETTINGS[name]
    change_settings(adapter, **settings)
    with pytest.raises(SourceError, match=says) as raised:
        merge(checkpoint, adapter)
    assert "\n" not in str(raised.value)
    assert str(adapter) in str(raised.value)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_another_model(name: str, checkpoint: Path, adapter: Path) -> None:
    changes, says = TENSORS[name]
    change_tensors(adapter, **changes)
    with pytest.raises(SourceError, match=says) as raised:
        merge(checkpoint, adapter)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("indices", "says"),
    [
        ([1], r"is \[2, 32\], expected \[1, 32\]"),
        ([1, 999], "has 999, but"),
        (None, r"expected \[0, 32\]"),
        ([-1, 0], ">= 0"),
    ],
)
def test_rows_of_tokens_that_do_not_exist(indices: Any, says: str, checkpoint: Path, tmp_path: Path) -> None:
    adapter = save_adapter(checkpoint, tmp_path / "adapter", trainable_token_indices=[3, 4])
    change_settings(adapter, trainable_token_indices=indices)
    with pytest.raises(SourceError, match=says):
        merge(checkpoint, adapter)


def test_more_than_two_tied_weights_are_not_untied(tmp_path: Path) -> None:
    from tiny_encoder_decoders import save_encoder_decoder

    from intaglio.exporters.checkpoints.lora.merging import Merging
    from intaglio.exporters.checkpoints.lora.parameter_names import ParameterNames

    model = save_encoder_decoder(tmp_path / "t5", "t5")
    opened = Checkpoint.open(str(model))
    names = ParameterNames(opened.tensors(), "T5ForConditionalGeneration", model)
    assert len(names.others("shared.weight")) >= 2
    adapter = save_adapter(
        model, tmp_path / "adapter", "T5ForConditionalGeneration", target_modules=["q"], modules_to_save=["shared"],
        task_type="SEQ_2_SEQ_LM",
    )  # fmt: skip
    with pytest.raises(SourceError, match=r"config\.json ties it to"):
        Merging(opened.tensors(), names, open_adapter(adapter), opened.config)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("org/name", "hf download org/name --local-dir DIR"),
        ("nowhere", "no such folder. Give the folder that peft saved"),
        ("{checkpoint}", "no adapter_config.json in it"),
        ("{checkpoint}/config.json", "a file, expected the folder"),
    ],
)
def test_folder_without_an_adapter(given: str, says: str, checkpoint: Path, tmp_path: Path, intaglio: Program) -> None:
    place = given.format(checkpoint=checkpoint)
    code, printed, errors = intaglio("export", checkpoint, "-o", tmp_path / "bundle", "--adapter", place)
    assert (code, printed, len(errors.splitlines())) == (2, "", 1)
    assert says in errors
    assert not (tmp_path / "bundle").exists()


def test_head_that_the_checkpoint_has_not(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    architecture = "BertForSequenceClassification"
    adapter = save_adapter(make_checkpoint(architecture), tmp_path / "a", architecture, target_modules=["query"])
    opened = Checkpoint.open(str(make_checkpoint("BertModel"))).with_adapter(open_adapter(adapter), "BertModel")
    with pytest.raises(SourceError, match=r"classifier\.bias is not in the checkpoint.*save it with save_pretrained"):
        opened.tensors()


def test_files_that_are_damaged(checkpoint: Path, adapter: Path) -> None:
    content = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(content[:-4])
    with pytest.raises(SourceError, match="truncated"):
        merge(checkpoint, adapter)
    (adapter / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(SourceError, match="pointer of Git LFS"):
        merge(checkpoint, adapter)
    (adapter / WEIGHTS).unlink()
    with pytest.raises(SourceError, match=r"no adapter_model\.safetensors in it"):
        merge(checkpoint, adapter)
    (adapter / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"adapter_model\.bin: a pickle.*safetensors"):
        merge(checkpoint, adapter)
    (adapter / WEIGHTS).write_bytes(content)
    (adapter / CONFIG).write_text("[]")
    with pytest.raises(SourceError, match="not a JSON object"):
        merge(checkpoint, adapter)


def test_graph_takes_no_adapter(adapter: Path, tmp_path: Path, intaglio: Program) -> None:
    code, _, errors = intaglio("export", tmp_path / "a.onnx", "-o", tmp_path / "bundle", "--adapter", adapter)
    assert code == 2
    assert "--adapter is merged into the weights of a checkpoint" in errors
