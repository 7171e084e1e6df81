"""A GGUF file that is damaged, or says what is not understood, gets one line; nothing is guessed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import examples
from gguf_files import options, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_families import save_family

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference.source_model import build_model
from intaglio.networks.blocks import blocks_path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family(tmp_path_factory.mktemp("gguf") / "float", "qwen2", **options("qwen2"))


@pytest.fixture(scope="module")
def whole(checkpoint: Path) -> bytes:
    return write_gguf(checkpoint, checkpoint.parent / "model.gguf", "qwen2", {"ffn": "Q8_0"}).read_bytes()


def open_all(path: Path) -> None:
    """Open the file, and build its model."""
    opened = Checkpoint.open(str(path), check=find_kind)
    build_model(opened, opened.parameters(), opened.config["architectures"][0], blocks_path)


def replaced(find: bytes, by: bytes) -> Callable[[bytes], bytes]:
    """Put other bytes into the place of the first occurrence."""

    def change(data: bytes) -> bytes:
        assert find in data
        return data.replace(find, by, 1)

    return change


def put(form: str, at: int, number: int) -> Callable[[bytes], bytes]:
    """Put a number at a byte."""
    return lambda data: data[:at] + struct.pack(form, number) + data[at + struct.calcsize(form) :]


CUTS = (0.001, 0.01, 0.02, 0.05, 0.5, 0.99)
NAME = b"token_embd.weight"
HEADER = [
    ("empty", lambda data: b"GGUF"),
    ("version 1", put("<I", 4, 1)),
    ("version 99", put("<I", 4, 99)),
    ("big-endian", put(">I", 4, 3)),
    ("2^63 tensors", put("<Q", 8, 1 << 63)),
    ("2^63 keys", put("<Q", 16, 1 << 63)),
    ("one tensor more", put("<Q", 8, 10_000)),
    ("one key more", put("<Q", 16, 60)),
    ("name of 2^60 bytes", put("<Q", 24, 1 << 60)),
    ("no text", replaced(b"qwen2.block_count", b"qwen2.block_\xff\xff\xff\xff\xff")),
    ("key twice", replaced(b"qwen2.context_length", b"general.architecture")),
    ("tensor twice", replaced(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight")),
    ("unknown tensor", replaced(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight")),
    ("unknown key", replaced(b"qwen2.context_length", b"qwen2.contrast_level")),
    ("block beyond", replaced(b"blk.1.attn_q.weight", b"blk.7.attn_q.weight")),
    ("another architecture", replaced(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0qwen9")),
    ("no embedding", replaced(NAME, b"token_embd.weighs")),
    *((f"cut at {share}", lambda data, share=share: data[: int(len(data) * share)]) for share in CUTS),
    ("9 axes", lambda data: _after(data, NAME, "<I", 9)),
    ("axis of 2^62", lambda data: _after(data, NAME, "<IQ", 2, 1 << 62)),
    ("axes that overflow", lambda data: _after(data, NAME, "<IQQ", 2, 1 << 33, 1 << 33)),
    ("type 77", lambda data: _after(data, NAME, "<IQQI", 2, 64, 272, 77)),
    ("type of blocks of 256", lambda data: _after(data, NAME, "<IQQI", 2, 64, 272, 12)),
    ("data beyond the file", lambda data: _after(data, NAME, "<IQQIQ", 2, 64, 272, 0, 1 << 50)),
    ("fewer rows", lambda data: _after(data, NAME, "<IQQ", 2, 64, 100)),
    ("no rows", lambda data: _after(data, NAME, "<IQQ", 2, 64, 0)),
]  # fmt: skip


def _after(data: bytes, name: bytes, form: str, *numbers: int) -> bytes:
    at = data.index(name) + len(name)
    packed = struct.pack(form, *numbers)
    return data[:at] + packed + data[at + len(packed) :]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in HEADER])
def test_damaged_file_gets_one_line(change: Callable[[bytes], bytes], whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(change(whole))
    with pytest.raises(SourceError) as error:
        open_all(path)
    assert "\n" not in str(error.value)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.data())
def test_changed_bytes_of_the_header_crash_nothing(changes: st.DataObject, whole: bytes, tmp_path: Path) -> None:
    from intaglio.exporters.checkpoints.gguf.container import read_container

    end = whole.index(b"output.weight") + 40
    changed = bytearray(whole)
    for _ in range(changes.draw(st.integers(1, 4))):
        changed[changes.draw(st.integers(0, end))] = changes.draw(st.integers(0, 255))
    path = tmp_path / "model.gguf"
    path.write_bytes(changed)
    try:
        for each in read_container(path).tensors.values():
            each.rows()
    except SourceError as error:
        assert "\n" not in str(error)


VALUES = [
    ("qwen2.block_count", 0, "block_count is 0, expected a positive number"),
    ("qwen2.block_count", 1 << 31, "block_count is 2147483648, expected a positive number"),
    ("qwen2.block_count", 3, ""),
    ("qwen2.embedding_length", "64", "embedding_length is '64', expected a positive number"),
    ("qwen2.attention.head_count", 7, ""),
    ("qwen2.attention.head_count_kv", 3, ""),
    ("qwen2.attention.head_count_kv", [2, 4], "differs between layers"),
    ("qwen2.attention.key_length", 24, "keys and values of different widths"),
    ("qwen2.attention.layer_norm_rms_epsilon", None, "without qwen2.attention.layer_norm_rms_epsilon"),
    ("qwen2.attention.clamp_kqv", 8.0, "attention.clamp_kqv is 8.0, which is not understood"),
    ("qwen2.rope.dimension_count", 8, "rope.dimension_count is 8, expected 16"),
    ("qwen2.rope.scaling.type", "dynamic", "rope.scaling.type is 'dynamic'"),
    ("qwen2.rope.scaling.attn_factor", 2.0, "attn_factor is not supported"),
    ("qwen2.rope.freq_base_swa", 77.0, "freq_base_swa is 77.0"),
    ("general.architecture", "mamba2", "general.architecture is 'mamba2'"),
    ("general.alignment", 12, "general.alignment is 12"),
    ("tokenizer.ggml.model", "bert", "its tokenizer is 'bert'"),
    ("tokenizer.ggml.model", None, "its tokenizer is 'None'"),
    ("tokenizer.ggml.pre", "new-one", "splits text as 'new-one', which is not known"),
    ("tokenizer.ggml.merges", None, "no merges"),
    ("tokenizer.ggml.merges", ["x"], "its tokenizer cannot be read"),
    ("tokenizer.ggml.merges", ["q zz"], "its tokenizer cannot be read"),
    ("tokenizer.ggml.tokens", ["a", "b"], ""),
    ("tokenizer.ggml.token_type", [1, 1], "2 of token_type for 272 tokens"),
    ("tokenizer.ggml.eos_token_id", 272, "eos_token_id is 272, expected a token below 272"),
    ("tokenizer.ggml.bos_token_id", -1.5, "bos_token_id is -1.5"),
    ("split.count", 3, "a part of a model in 3 files"),
]


@pytest.mark.parametrize(("key", "value", "message"), VALUES, ids=str)
def test_value_that_does_not_fit_gets_one_line(
    key: str, value: Any, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    path = write_gguf(checkpoint, tmp_path / "model.gguf", "qwen2", values={key: value})
    with pytest.raises(SourceError) as error:
        open_all(path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_longer_vocabulary_than_the_embedding_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    tokens = np.zeros((256, 64), np.float32)
    tensors = {"token_embd.weight": tokens, "output.weight": tokens}
    path = write_gguf(checkpoint, tmp_path / "model.gguf", "qwen2", tensors=tensors)
    with pytest.raises(SourceError, match="272 tokens, but an embedding of 256"):
        Checkpoint.open(str(path))
