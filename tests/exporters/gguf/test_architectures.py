"""A GGUF file is the model that it was written from: its configuration, its weights, its tokenizer, its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from covering import few
from gguf_files import options, write_gguf
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.compression import compress
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.gguf.architectures import ARCHITECTURES
from intaglio.exporters.checkpoints.gguf.container import read_container
from intaglio.exporters.export_model import Exported
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference.source_model import build_model
from intaglio.exporters.source import load_module
from intaglio.networks.blocks import blocks_path
from intaglio.plugins.group_matmul.look_up import codes_looked_up
from intaglio.plugins.group_matmul.minimums import completes_groups
from intaglio.runtime import build, generate

PROMPT = [[5, 6, 7, 200, 9, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]]  # longer than the windows


def save(folder: Path, architecture: str, **changes: Any) -> Path:
    """A tiny checkpoint of an architecture."""
    return save_family(folder / "float", ARCHITECTURES[architecture].model_type, **options(architecture) | changes)


def logits(model: Any) -> Any:
    """Of a model of transformers."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(PROMPT)).logits.numpy()


def assert_is_the_model(path: Path, checkpoint: Path, architecture: str) -> None:
    """The model of the file computes what the checkpoint's does, to the bit."""
    import transformers

    opened = Checkpoint.open(str(path), check=find_kind)
    found = build_model(opened, opened.parameters(), opened.config["architectures"][0], blocks_path)
    config = transformers.AutoConfig.from_pretrained(checkpoint, attn_implementation="eager")
    source = getattr(transformers, config.architectures[0]).from_pretrained(checkpoint, config=config)
    np.testing.assert_array_equal(logits(found.eval()), logits(source.eval()))


@pytest.mark.parametrize(
    "architecture", few(list(ARCHITECTURES), ["llama", "gemma3", "phi3", "qwen3moe", "nemotron", "gpt-oss"])
)
def test_model_of_a_file_equals_its_checkpoint(architecture: str, tmp_path: Path) -> None:
    checkpoint = save(tmp_path, architecture)
    assert_is_the_model(write_gguf(checkpoint, tmp_path / "model.gguf", architecture), checkpoint, architecture)


def test_experts_of_a_llama_are_read_as_mixtral(tmp_path: Path) -> None:
    checkpoint = save_family(tmp_path / "float", "mixtral", **options("llama"))
    assert_is_the_model(write_gguf(checkpoint, tmp_path / "model.gguf", "llama"), checkpoint, "llama")


YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}}),
        ("qwen3", {"rope_parameters": YARN}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("stablelm", {"use_parallel_residual": True, "qk_layernorm": False}),
        ("gemma2", {"final_logit_softcapping": 9.0, "attn_logit_softcapping": 3.0}),
        ("phi3", {"sliding_window": None, "partial_rotary_factor": 0.5}),
        ("arcee", {"num_key_value_heads": 4}),
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_a_model_are_in_its_file(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = save(tmp_path, architecture, **changes)
    scaling = changes.get("rope_parameters", {})
    values = {
        f"{architecture}.rope.scaling.type": scaling.get("rope_type"),
        f"{architecture}.rope.scaling.factor": scaling.get("factor"),
        f"{architecture}.rope.scaling.original_context_length": scaling.get("original_max_position_embeddings"),
    }
    path = write_gguf(checkpoint, tmp_path / "model.gguf", architecture, values=values)
    assert_is_the_model(path, checkpoint, architecture)


def test_frequencies_of_llama_3_are_recognised_and_others_refused(tmp_path: Path) -> None:
    rotary = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rotary["original_max_position_embeddings"] = 8192
    checkpoint = save(tmp_path, "llama", rope_parameters=rotary, max_position_embeddings=65536)
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(checkpoint), "cpu")
    plain = 5e5 ** -(np.arange(0, 16, 2) / 16)
    factors = {"rope_freqs.weight": (plain / scaled.numpy()).astype(np.float32)}
    assert_is_the_model(write_gguf(checkpoint, tmp_path / "a.gguf", "llama", tensors=factors), checkpoint, "llama")
    factors["rope_freqs.weight"][3] *= 1.5
    with pytest.raises(SourceError, match=r"rope_freqs.weight is not what LLaMA 3.1 has"):
        Checkpoint.open(str(write_gguf(checkpoint, tmp_path / "b.gguf", "llama", tensors=factors)))


def test_long_texts_of_phi_3_have_frequencies_of_their_own(tmp_path: Path) -> None:
    factors = {name: np.linspace(1, top, 8) for name, top in (("short", 2), ("long", 9))}
    rotary = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        **{f"{name}_factor": list(each) for name, each in factors.items()},
    }
    checkpoint = save(tmp_path, "phi3", rope_parameters=rotary, original_max_position_embeddings=32)
    tensors = {f"rope_factors_{name}.weight": each for name, each in factors.items()}
    path = write_gguf(
        checkpoint,
        tmp_path / "m.gguf",
        "phi3",
        tensors=tensors,
        values={"phi3.rope.scaling.original_context_length": 32},
    )
    assert_is_the_model(path, checkpoint, "phi3")


MIXED = {
    "attn_q": "Q4_K",
    "attn_k": "Q8_0",
    "attn_v": "F16",
    "attn_output": "Q4_0",
    "ffn_down": "Q6_K",
    "ffn_gate": "Q4_1",
}
MORE = {"ffn_up": "Q5_K", "token_embd": "Q5_1", "output.weight": "Q5_1"}
EXPORTED = [
    ("llama", {**MIXED, **MORE}),
    ("qwen2", {"attn": "IQ4_XS", "ffn": "Q2_K", "token_embd": "Q8_0"}),
    ("gemma3", {"attn_[qkvo]": "IQ4_NL", "ffn_(up|gate)": "Q3_K", "ffn_down": "BF16", "token_embd": "Q6_K"}),
    ("phi3", {"attn": "Q4_K", "ffn": "Q6_K"}),
    ("qwen3moe", {"exps": "Q4_K", "attn_[qkvo]": "Q8_0"}),
    ("gpt-oss", {"exps.weight": "MXFP4", "attn_[qkvo]": "Q8_0"}),
    ("gpt-oss", {"exps.weight": "Q4_K"}),
    ("qwen2moe", {"exps": "MXFP4", "output.weight": "F16"}),
]
SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
WIDE = {**dict.fromkeys(SIZES, 256), "head_dim": 64}


class File(NamedTuple):
    """A file and its bundle, in one folder."""

    path: Path
    bundle: Path
    result: Exported
    looks_up: bool  # whether its embedding has groups that are kept
    has_head: bool  # of its own, else it is tied to the embedding


def export_file(folder: Path, architecture: str, types: dict[str, str]) -> File:
    """Write a file with weights of these types, and export it."""
    path = write_gguf(save(folder, architecture, **WIDE), folder / "model.gguf", architecture, types)
    looks_up = types.get("token_embd", "") in ("Q5_1", "Q8_0", "Q6_K")
    has_head = "output.weight" in read_container(path).tensors
    return File(path, folder / "bundle", export(str(path), folder / "bundle"), looks_up, has_head)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> File:
    return export_file(tmp_path_factory.mktemp("gguf"), *EXPORTED[0])


def test_bundle_keeps_the_numbers_and_writes_the_text_of_the_model(exported: File) -> None:
    assert_keeps_the_numbers(exported)


@pytest.mark.proof
@pytest.mark.parametrize(("architecture", "types"), EXPORTED[1:], ids=str)
def test_every_architecture_keeps_the_numbers(architecture: str, types: dict[str, str], tmp_path: Path) -> None:
    assert_keeps_the_numbers(export_file(tmp_path, architecture, types))


def assert_keeps_the_numbers(file: File) -> None:
    """The graph multiplies by the numbers that its notes count, and writes transformers' text of the file's weights."""
    import torch
    from tokenizers import Tokenizer

    assert file.result.passed
    graph = load(Bundle.open(file.bundle).model_path).graph
    products = sum(node.op_type == "GroupMatMul" for node in graph)
    looked_up = [str(node.inputs[0].name) for node in graph if codes_looked_up(node)]
    assert looked_up == (["model.embed_tokens.weight.packed"] if file.looks_up else [])
    assert ("lm_head.weight.packed" in graph.initializers) <= file.has_head
    assert products > 0 and any("weights are kept as gguf has them" in note for note in file.result.notes)
    opened = Checkpoint.open(str(file.path))
    model = build_model(opened, opened.parameters(), opened.config["architectures"][0], blocks_path).eval()
    text = "Hello wo"
    ids = torch.tensor([Tokenizer.from_file(str(opened.folder / "tokenizer.json")).encode(text).ids])
    expected = model.generate(ids, max_new_tokens=30, do_sample=False)[0, ids.shape[1] :].tolist()
    (found,) = generate(file.bundle, [text], max_new_tokens=30)
    assert list(found.tokens) == expected


@pytest.mark.parametrize("recipe", ["rtn", "int8-weights"])
def test_compression_leaves_the_parts_of_quantised_weights(recipe: str, exported: File, tmp_path: Path) -> None:
    compress(exported.bundle, tmp_path / "smaller", recipe)
    folders = exported.bundle, tmp_path / "smaller"
    before, after = (load(Bundle.open(folder).model_path).graph.initializers for folder in folders)
    parts = [name for name in before if completes_groups(name)]
    assert len(parts) > 6
    for name in parts:
        np.testing.assert_array_equal(after[name].const_value.numpy(), before[name].const_value.numpy())
    assert any("v_proj" in name for name in after.keys() - before.keys())


HALF = {"attn": "Q8_0", "ffn_(up|gate)": "Q4_K", "ffn_down": "Q6_K"}


@pytest.mark.proof
def test_bundle_in_float16_builds_for_gpus(tmp_path: Path) -> None:
    path = write_gguf(save(tmp_path, "llama", **WIDE), tmp_path / "model.gguf", "llama", HALF)
    result = export(str(path), tmp_path / "bundle", dtype="float16")
    assert result.passed, result.outputs
    (engine,) = build(tmp_path / "bundle", "tensorrt-rtx", ["a100"]).engines
    assert engine.gpu == "a100"


def test_bundle_of_a_file_is_validated_against_it(exported: File, tmp_path: Path) -> None:
    source = Bundle.open(exported.bundle).manifest.source
    assert list(source.sha256) == ["model.gguf"]
    assert load_module(source) is not None
    content = exported.path.read_bytes()
    try:
        exported.path.write_bytes(content + b"\0")
        with pytest.raises(SourceError, match=r"model.gguf: SHA-256"):
            load_module(source)
    finally:
        exported.path.write_bytes(content)


def test_parts_of_a_model_are_joined(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, "qwen2")
    whole = Checkpoint.open(str(write_gguf(checkpoint, tmp_path / "whole.gguf", "qwen2")))
    assert whole.gguf is not None
    count = {"split.count": 2}
    first = write_gguf(checkpoint, tmp_path / "m-00001-of-00002.gguf", "qwen2", values=count)
    with pytest.raises(SourceError, match=r"m-00002-of-00002.gguf: missing"):
        Checkpoint.open(str(first))
    second = write_gguf(checkpoint, tmp_path / "m-00002-of-00002.gguf", "qwen2", values=count)
    assert Checkpoint.open(str(first)).parameters().keys() == whole.parameters().keys()
    assert [path.name for path in Checkpoint.open(str(first)).weights] == [first.name, second.name]
    with pytest.raises(SourceError, match=r"Give the first"):
        Checkpoint.open(str(second))


def test_tokenizer_and_template_come_from_the_file(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    checkpoint = save(tmp_path, "qwen2")
    values = {"tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.eot_token_id": 3}
    opened = Checkpoint.open(str(write_gguf(checkpoint, tmp_path / "model.gguf", "qwen2", values=values)))
    settings = json.loads((opened.folder / "tokenizer_config.json").read_text())
    assert (settings["chat_template"], settings["eos_token"]) == ("{{ messages }}", "<|end|>")
    assert opened.config["eos_token_id"] == [256, 3]
    source = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    found = Tokenizer.from_file(str(opened.folder / "tokenizer.json"))
    for text in ("Hello world", "  two 12345\n\n\tdon't", "naïve 世界 😀", "<|end|>a", ""):
        assert found.encode(text).ids == source.encode(text).ids
    values = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 7}
    opened = Checkpoint.open(str(write_gguf(checkpoint, tmp_path / "begin.gguf", "qwen2", values=values)))
    found = Tokenizer.from_file(str(opened.folder / "tokenizer.json"))
    assert found.encode("Hi").ids == [7, *source.encode("Hi").ids]
