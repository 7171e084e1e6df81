"""NeMo archives: the networks equal those of NeMo, and the content of an archive is untrusted."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError
from intaglio.runtime.speech.recognizer import SpeechRecognizer
from intaglio.samples.speech_samples import recordings

ARCHIVES = Path(__file__).parent / "nemo"
NAMES = sorted(path.stem for path in ARCHIVES.glob("*.nemo"))
WEIGHTS, CONFIG = "model_weights.ckpt", "model_config.yaml"


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_equal_nemo(name: str, tmp_path: Path) -> None:
    intaglio.convert(ARCHIVES / f"{name}.nemo", tmp_path / "checkpoint")
    # The export's own check, a process of its own, is for all of them the same.
    checked = name == "conformer"
    assert intaglio.export(tmp_path / "checkpoint", tmp_path / "bundle", check=checked).passed in (checked, None)
    expected = np.load(ARCHIVES / f"{name}.npy")
    samples = recordings()[1].samples[4000:21554]
    with SpeechRecognizer(Bundle.open(tmp_path / "bundle")) as recognizer:
        found, frames = recognizer.log_probs(samples[None], np.array([len(samples)]))
    assert frames.tolist() == [len(expected)]
    assert np.abs(found[0] - expected).max() <= 1e-5 * np.abs(expected).max()


def changed(
    tmp_path: Path,
    config: Callable[[dict[str, Any]], Any] = lambda config: None,
    weights: Callable[[dict[str, torch.Tensor]], Any] = lambda weights: None,
) -> Path:
    """The archive of the Squeezeformer with another configuration or other weights."""
    with tarfile.open(ARCHIVES / "squeezeformer.nemo") as archive:
        members = {member.name.rpartition("/")[2]: archive.extractfile(member) for member in archive}
        read = yaml.safe_load(members[CONFIG])
        tensors = torch.load(io.BytesIO(members[WEIGHTS].read()), weights_only=True)
    config(read)
    weights(tensors)
    stream = io.BytesIO()
    torch.save(tensors, stream)
    return written(tmp_path, {CONFIG: yaml.safe_dump(read).encode(), WEIGHTS: stream.getvalue()})


def written(tmp_path: Path, files: dict[str, bytes]) -> Path:
    path = tmp_path / "changed.nemo"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def refused(path: Path, tmp_path: Path, *reasons: str) -> None:
    with pytest.raises(SourceError) as raised:
        intaglio.convert(path, tmp_path / "checkpoint")
    assert all(reason in str(raised.value) for reason in reasons), raised.value
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "checkpoint").exists()


BAD_CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another encoder": (lambda config: config["encoder"].update(_target_="a.ContextNet"), "ContextNet"),
    "no encoder": (lambda config: config.pop("encoder"), "no section 'encoder'"),
    "an encoder that is text": (lambda config: config.update(encoder="x"), "no section 'encoder'"),
    "absolute positions": (lambda config: config["encoder"].update(self_attention_model="abs_pos"), "abs_pos"),
    "limited attention": (lambda config: config["encoder"].update(att_context_size=[8, 8]), "att_context_size"),
    "other features": (lambda config: config["preprocessor"].update(features=64), "mel filters"),
    "another window": (lambda config: config["preprocessor"].update(window="hamming"), "hamming"),
    "no vocabulary": (lambda config: config["decoder"].pop("vocabulary"), "vocabulary"),
    "numbers as vocabulary": (lambda config: config["decoder"].update(vocabulary=[1, 2]), "vocabulary"),
    "too many layers": (lambda config: config["encoder"].update(n_layers=4), "encoder.layers.3"),
    "a million layers": (lambda config: config["encoder"].update(n_layers=10**6), "num_hidden_layers"),
    "text as width": (lambda config: config["encoder"].update(d_model="16"), "d_model"),
    "a reduction beyond the last block": (
        lambda config: config["encoder"].update(time_reduce_idx=7),
        "time is reduced",
    ),
    "a reduction that is text": (lambda config: config["encoder"].update(time_reduce_idx="1"), "time_reduce_idx"),
    "an even kernel": (lambda config: config["encoder"].update(conv_kernel_size=8), "conv_kernel_size"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_unsupported_options_print_one_line(name: str, tmp_path: Path) -> None:
    change, reason = BAD_CONFIGS[name]
    refused(changed(tmp_path, config=change), tmp_path, reason)


def test_wrong_shapes_and_missing_weights_are_reported(tmp_path: Path) -> None:
    name = "encoder.layers.0.self_attn.linear_q.weight"
    refused(changed(tmp_path, weights=lambda tensors: tensors.pop(name)), tmp_path, "q_proj.weight", "missing")
    wide = changed(tmp_path, weights=lambda tensors: tensors.update({name: torch.zeros(16, 17)}))
    refused(wide, tmp_path, "[16, 17], expected [16, 16]")
    extra = changed(tmp_path, weights=lambda tensors: tensors.update({"encoder.other": torch.zeros(2)}))
    refused(extra, tmp_path, "encoder.other (unexpected)")


def test_filters_that_contradict_the_options_are_refused(tmp_path: Path) -> None:
    def shift(tensors: dict[str, torch.Tensor]) -> None:
        tensors["preprocessor.featurizer.fb"] += 0.001

    refused(changed(tmp_path, weights=shift), tmp_path, "mel filters")


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (lambda old: torch.empty(old.shape, device="meta"), "not a plain dense tensor"),
        (lambda old: old.to_sparse(), "not a plain dense tensor"),
        (lambda old: old.to(torch.complex64), "not a plain dense tensor"),
        (lambda old: torch.zeros(1).expand(1 << 20, 1 << 20), "bytes, expected at most"),
    ],
    ids=["meta", "sparse", "complex", "expanded"],
)
def test_non_numeric_tensors_print_one_line(tensor: Any, reason: str, tmp_path: Path) -> None:
    name = "encoder.layers.0.self_attn.linear_q.weight"
    refused(changed(tmp_path, weights=lambda found: found.update({name: tensor(found[name])})), tmp_path, reason)


def test_lone_surrogate_prints_one_line(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["decoder"]["vocabulary"][1] = "\ud800"

    refused(changed(tmp_path, config=change), tmp_path, "a lone surrogate")
    named = changed(tmp_path, weights=lambda found: found.update({"\udc00": torch.zeros(1)}))
    refused(named, tmp_path, "a name is not text")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"n_fft": 512_000_000}, "front_end.fft_size is 512000000, expected 2 to 65536"),
        ({"n_fft": 1 << 16, "window_size": 4.0}, "fft_size times front_end.window"),
        ({"n_fft": 1 << 15, "features": 4096}, "fft_size times front_end.mels"),
        ({"sample_rate": 10**9, "highfreq": None}, "sample_rate"),
    ],
)
def test_front_end_options_are_checked_before_use(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["preprocessor"].update(options)
        config["encoder"]["feat_in"] = config["preprocessor"]["features"]

    refused(changed(tmp_path, config=change), tmp_path, reason)


def test_decompression_bomb_is_not_unpacked(tmp_path: Path) -> None:
    refused(written(tmp_path, {"zeros": bytes(100 << 20)}), tmp_path, "32 times its own size")


def test_code_in_the_weights_is_not_executed(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVES / "squeezeformer.nemo") as archive:
        config = next(archive.extractfile(each).read() for each in archive if each.name.endswith(CONFIG))  # type: ignore[union-attr]
    data = pickle.dumps({"encoder.x": Runs(tmp_path / "ran")})
    refused(written(tmp_path, {CONFIG: config, WEIGHTS: data}), tmp_path, "cannot be read without running code")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, f"no {CONFIG}"),
        ({CONFIG: b"a: 1"}, f"no {WEIGHTS}"),
        ({CONFIG: b"a: [", WEIGHTS: b""}, "not YAML"),
        ({CONFIG: b"a: &x [1]\nb: *x", WEIGHTS: b""}, "aliases"),
        ({CONFIG: b"\xff\xfe\xfd", WEIGHTS: b""}, "not YAML"),
        ({CONFIG: b"- 1", WEIGHTS: b""}, "no options"),
        ({CONFIG: b"a: [" + b'"${a}",' * 40 + b"]", WEIGHTS: b""}, "refers to itself"),
        ({CONFIG: b"a: " + b"[" * 150 + b'"${a}"' + b"]" * 150, WEIGHTS: b""}, "refers to itself"),
        ({CONFIG: b"a: 1", WEIGHTS: b"x"}, "cannot be read"),
        ({f"../{CONFIG}": b"a: ${a}", f"/etc/{WEIGHTS}": b"x"}, "cannot be read"),
    ],
)
def test_damaged_archive_prints_one_line(files: dict[str, bytes], reason: str, tmp_path: Path) -> None:
    refused(written(tmp_path, files), tmp_path, reason)


@pytest.mark.parametrize("module", [gzip, bz2, lzma], ids=lambda module: module.__name__)
def test_damaged_compression_prints_one_line(module: ModuleType, tmp_path: Path) -> None:
    with tarfile.open(ARCHIVES / "squeezeformer.nemo") as archive:
        assert archive.fileobj is not None
        archive.fileobj.seek(0)
        whole = module.compress(archive.fileobj.read())
    path = tmp_path / "damaged.nemo"
    size = len(whole) // 8
    for place in range(size, len(whole) - size, size):
        path.write_bytes(whole[:place] + np.random.default_rng(place).bytes(size) + whole[place + size :])
        refused(path, tmp_path, "damaged.nemo: ")


def test_file_that_is_no_archive_prints_one_line(tmp_path: Path) -> None:
    path = tmp_path / "text.nemo"
    path.write_text("no archive")
    refused(path, tmp_path, "not a readable .nemo archive")
    refused(tmp_path / "missing.nemo", tmp_path, "no such file")
    refused(tmp_path, tmp_path, "expected a .nemo archive")
    whole = (ARCHIVES / "squeezeformer.nemo").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, tmp_path, "text.nemo")
