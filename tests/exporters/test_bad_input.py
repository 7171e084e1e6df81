"""Any error in the source or the output prints one line, exits with code 2, and leaves no files."""

from __future__ import annotations

import errno
import json
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import save_decoder
from tiny_encoder_decoders import save_encoder_decoder

from intaglio.cli import main
from intaglio.exporters.families import DECODERS, ENCODERS


@pytest.fixture
def source(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint to damage."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "source"))


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `intaglio export` on arguments; check exit code 2, one line, no files left; return the line."""

    def run(source: Path | str, *options: str) -> str:
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        before = sorted(path.relative_to(out) for path in out.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["intaglio", "export", str(source), "-o", str(out / "bundle"), *options])
        capsys.readouterr()  # of transformers, which shows its progress when it saves a checkpoint
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        assert stopped.value.code == 2
        assert captured.out == ""
        assert sorted(path.relative_to(out) for path in out.rglob("*")) == before
        (line,) = captured.err.strip().splitlines()
        return line

    return run


def edit_config(source: Path, **changes: Any) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **changes}))


def test_folder_without_config_is_refused(source: Path, refused: Callable[..., str]) -> None:
    (source / "config.json").unlink()
    assert "no config.json" in refused(source)


def test_missing_source_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "not a directory" in refused(tmp_path / "nowhere")


def test_unsupported_architecture_names_the_nearest_one_and_the_page(source: Path, refused: Callable[..., str]) -> None:
    edit_config(source, model_type="t6", architectures=["T6ForConditionalGeneration"])
    line = refused(source)
    assert "T6ForConditionalGeneration is not supported" in line
    assert "T5ForConditionalGeneration (t5)" in line and "docs/reference.md" in line
    page = (Path(__file__).parent.parent.parent / "docs" / "reference.md").read_text()
    listed = [architecture for family in (*DECODERS, *ENCODERS) for architecture in family.architectures]
    assert "## What can be exported" in page and all(architecture in page for architecture in listed)


@pytest.mark.parametrize("kept", [0, 4, 8, 200, -1])
def test_truncated_safetensors_are_refused(kept: int, source: Path, refused: Callable[..., str]) -> None:
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert "truncated" in refused(source)


def test_files_that_need_gigabytes_to_parse_are_refused(source: Path, refused: Callable[..., str]) -> None:
    weights, config = source / "model.safetensors", (source / "config.json").read_text()
    (source / "config.json").write_text(config + " " * (16 << 20))
    assert "config.json" in (line := refused(source)) and "expected at most 16777216" in line
    (source / "config.json").write_text(config)
    weights.write_bytes(struct.pack("<Q", 17 << 20) + b" " * (17 << 20))
    assert "a header of 17825792 bytes, expected at most 16777216" in refused(source)


@pytest.mark.parametrize(
    "header",
    [b"{", b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
     b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}',
     b'{"a": {"dtype": "PICKLE", "shape": [], "data_offsets": [0, 4]}}'],
)  # fmt: skip
def test_damaged_safetensors_are_refused(header: bytes, source: Path, refused: Callable[..., str]) -> None:
    (source / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    assert "model.safetensors" in refused(source)


def test_missing_weights_are_refused(source: Path, refused: Callable[..., str]) -> None:
    edit_config(source, num_hidden_layers=3)
    assert "weights of BertModel are missing" in refused(source)


def test_wrong_weight_shapes_are_refused(source: Path, refused: Callable[..., str]) -> None:
    edit_config(source, intermediate_size=96)
    assert "BertModel" in refused(source)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 10**12), ("hidden_size", 10**12), ("max_position_embeddings", 10**9), ("vocab_size", 1e300)],
)
def test_impossible_sizes_are_refused_immediately(
    key: str, value: float, source: Path, refused: Callable[..., str]
) -> None:
    edit_config(source, **{key: value})
    start = time.monotonic()
    assert f"config.json: {key} is {value}, expected at most" in refused(source)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("family", "key"),
    [("gpt2", "n_layer"), ("opt", "num_hidden_layers"), ("llama", "num_hidden_layers"), ("qwen2", "num_hidden_layers"),
     ("qwen3", "num_hidden_layers"), ("qwen3", "head_dim"),
     ("llama", "num_key_value_heads"), ("llama", "head_dim"), ("gpt2", "n_positions"),
     ("llama", "max_position_embeddings"), ("t5", "num_decoder_layers"), ("t5", "num_heads"),
     ("t5", "relative_attention_num_buckets")],
)  # fmt: skip
def test_impossible_sizes_are_refused_in_every_family(
    family: str, key: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    save = save_encoder_decoder if family == "t5" else save_decoder
    source = save(tmp_path / "source", family)
    edit_config(source, **{key: 10**12})
    assert f"config.json: {key} is {10**12}, expected at most" in refused(source)


def test_pickled_checkpoint_is_refused_and_names_convert(source: Path, refused: Callable[..., str]) -> None:
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    line = refused(source)
    assert f"intaglio convert {source} -o CHECKPOINT" in line
    assert "pickle" in line


def test_shard_outside_the_folder_is_refused(source: Path, refused: Callable[..., str]) -> None:
    (source / "model.safetensors").rename(source.parent / "outside.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../outside.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "stays inside" in refused(source)


def test_unsupported_dtype_is_refused(source: Path, refused: Callable[..., str]) -> None:
    assert "'int3'" in refused(source, "--dtype", "int3")


def test_unsupported_pooling_is_refused(source: Path, refused: Callable[..., str]) -> None:
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "median"}))
    assert "Supported are: cls, max, mean" in refused(source)


def test_unsupported_module_is_refused(source: Path, refused: Callable[..., str]) -> None:
    modules = json.loads((source / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.CNN"
    (source / "modules.json").write_text(json.dumps(modules))
    assert "CNN" in refused(source)


def test_invalid_json_config_is_refused(source: Path, refused: Callable[..., str]) -> None:
    (source / "config.json").write_text("{'model_type': 'bert'}")
    assert "not a JSON object" in refused(source)


def test_invalid_tokenizer_is_refused(source: Path, refused: Callable[..., str]) -> None:
    (source / "tokenizer.json").write_text("{}")
    assert "not a readable tokenizer" in refused(source)


def test_existing_output_needs_force(source: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "out" / "bundle").mkdir(parents=True)
    (tmp_path / "out" / "bundle" / "bundle.json").write_text("{}")
    assert "--force" in refused(source)
    assert (tmp_path / "out" / "bundle" / "bundle.json").read_text() == "{}"


@pytest.mark.proof
def test_disk_full_at_the_end_prints_one_line(
    source: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    assert "No space left on device" in refused(source, "--no-check")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_position_embeddings", "abc"),
        ("max_position_embeddings", -5),
        ("max_position_embeddings", None),
        ("pad_token_id", "x"),
        ("pad_token_id", 10**12),
        ("vocab_size", 5),
        ("hidden_size", "32"),
        ("hidden_act", "foo"),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 1),
        ("num_attention_heads", 0),
        ("num_attention_heads", -4),
        ("layer_norm_eps", "x"),
        ("position_embedding_type", "relative_key"),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    ],
)
def test_invalid_configuration_is_refused(key: str, value: Any, source: Path, refused: Callable[..., str]) -> None:
    edit_config(source, **{key: value})
    assert "bug in intaglio" not in refused(source)


def test_checkpoint_without_a_tokenizer_is_refused(source: Path, refused: Callable[..., str]) -> None:
    (source / "tokenizer.json").unlink()
    assert "neither tokenizer.json nor a vocabulary" in refused(source)


def test_empty_tokenizer_is_refused(source: Path, refused: Callable[..., str]) -> None:
    content = json.loads((source / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: number for token, number in vocabulary.items() if token.startswith("[")}
    (source / "tokenizer.json").write_text(json.dumps(content))
    assert "its tokenizer has an empty vocabulary" in refused(source)


@pytest.mark.parametrize("fault", ["overlap", "trailing"])
def test_safetensors_with_wrong_data_size_are_refused(fault: str, source: Path, refused: Callable[..., str]) -> None:
    path = source / "model.safetensors"
    data = path.read_bytes()
    if fault == "trailing":
        path.write_bytes(data + b"x" * 100)
        assert "more data than its header lists" in refused(source)
        return
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first, second = (name for name in list(header) if name.endswith("attention.self.key.weight"))
    header[second]["data_offsets"] = header[first]["data_offsets"]
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + length :])
    assert "the end of the previous tensor" in refused(source)


def test_non_numeric_weights_are_refused(source: Path, refused: Callable[..., str]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(source / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][:] = float("nan")
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    assert "returns NaN or infinity" in refused(source)


def test_output_inside_another_bundle_is_refused(source: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bundle.json").write_text("{}")
    assert "is inside another bundle" in refused(source)


@pytest.mark.proof
def test_disk_full_while_writing_weights_prints_one_line(source: Path, refused: Callable[..., str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        assert "File too large" in refused(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.proof
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.proof),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.proof),
    ],
)
def test_interrupt_leaves_no_files(number: signal.Signals, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-P", "-m", "intaglio", "export", str(source), "-o", str(out / "bundle")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        deadline = time.monotonic() + 60
        while not list(out.glob(".bundle.*/tokenizer.json")):
            assert program.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)
        program.send_signal(number)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 128 + number
    assert errors.strip().splitlines() == [
        "intaglio: interrupted. Unfinished output was removed; run the command again."
    ]
    assert list(out.iterdir()) == []
