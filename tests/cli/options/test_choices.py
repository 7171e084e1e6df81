"""Commands take the addresses of bundles, refuse those of other files, and report a wrong one in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.bundle_names import named
from intaglio.cli import cli
from intaglio.cli.options.choices import PATH, BundleOrName, BundleToRead, BundleToWrite
from intaglio.cli.running.command import commands
from intaglio.errors import UsageError
from intaglio.runtime import open_engine
from intaglio.storage.fetch import fetch

pytest.importorskip("fsspec")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTAGLIO_BUNDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_bundle_runs_at_its_address(intaglio: Run, tiny_bundle: Path) -> None:
    local = intaglio("run", tiny_bundle, "A sentence.", "--json")
    assert intaglio("run", f"file://{tiny_bundle}", "A sentence.", "--json") == local and local[0] == 0


def test_compressed_bundle_is_written_to_an_address(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/store/half"
    arguments = "compress", f"file://{tiny_bundle}", "-o", address, "--recipe", "float16"
    code, out, _ = intaglio(*arguments, "--json")
    assert code == 0 and json.loads(out)["bundle"] == address
    assert intaglio("compress", tiny_bundle, "-o", tmp_path / "half", "--recipe", "float16")[0] == 0
    assert Bundle.open(address).manifest.files == Bundle.open(tmp_path / "half").manifest.files
    code, _, err = intaglio(*arguments)
    assert (code, err.count("\n")) == (2, 1) and "holds a bundle. Add --force to replace it" in err
    assert intaglio(*arguments, "--force")[0] == 0


def test_engines_are_added_at_an_address(intaglio: Run, tiny_bundle: Path, tmp_path: Path, cache: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "store" / "tiny")
    address = f"file://{tmp_path}/store/tiny"
    assert intaglio("build", address, "--target", "ort-cpu")[0] == 0
    (engine,) = Bundle.open(address).manifest.engines
    assert (tmp_path / "store" / "tiny" / engine.path).stat().st_size == engine.bytes
    code, _, err = intaglio("build", address, "--target", "ort-cpu")
    assert (code, err.count("\n")) == (2, 1) and "--force" in err
    code, _, err = intaglio("build", fetch(address), "--target", "ort-cpu")
    assert (code, err.count("\n")) == (2, 1) and "give its address" in err
    assert not list(cache.glob("upload-*"))


def test_failed_command_leaves_nothing_at_its_address(
    intaglio: Run, tiny_bundle: Path, tmp_path: Path, cache: Path
) -> None:
    code, _, err = intaglio("compress", tiny_bundle, "-o", f"file://{tmp_path}/store/x", "--recipe", "awq",
                            "--calibration", tmp_path / "missing.txt")  # fmt: skip
    assert (code, err.count("\n")) == (2, 1)
    assert not (tmp_path / "store" / "x").exists() and not list(cache.iterdir())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("run", "gs://models/llama", "a"), "gs://models/llama: the scheme is 'gs', expected one of file, memory, s3."),
        (("run", "memory://models/llama", "a"), "memory://models/llama: no bundle.json there. Give the address of"),
        (("sensitivity", "b", "--calibration", "t", "-o", "s3://a/b"), "s3://a/b is an address, and only a local path"),
        (("run", "llama", "--input", "s3://a/texts"), "'--input': s3://a/texts is an address, and only a local path"),
        (
            ("compress", "b", "-o", "memory://a/b", "--recipe", "gptq", "--resume"),
            "with --resume it is a local path",
        ),
        (("export", "b", "-o", "memory://a/b", "--format", "gguf"), "with --format it is a local path"),
    ],
)
def test_wrong_addresses_are_one_line(arguments: tuple[str, ...], problem: str, intaglio: Run) -> None:
    code, out, err = intaglio(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and problem in err


def test_reports_of_a_fetched_bundle_need_a_folder(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = "validate", f"file://{tiny_bundle}", "--against", "reference", "--samples", 1
    code, _, err = intaglio(*arguments)
    assert (code, err.count("\n")) == (2, 1) and "Add --report DIR" in err
    assert intaglio(*arguments, "--report", tmp_path / "report")[0] == 0


def test_named_bundles_may_have_addresses(tiny_bundle: Path) -> None:
    address = f"file://{tiny_bundle}"
    assert named([address]) == {"tiny": fetch(address)}
    assert named([f"chat={address}", tiny_bundle]) == {"chat": fetch(address), "tiny": tiny_bundle}
    with pytest.raises(UsageError, match=f"adapter {address} is an address"):
        named([f"sql={address}"], "adapter")


def test_engine_opens_at_an_address(tiny_bundle: Path) -> None:
    with open_engine(f"file://{tiny_bundle}") as engine:
        assert engine is not None


def test_paths_of_all_commands_refuse_or_take_addresses() -> None:
    """No command has a path type of click's own, which would take an address for a path."""
    kinds = (BundleToRead, BundleToWrite, BundleOrName, type(PATH))
    found = [
        f"{name} {parameter.name}"
        for name, command in commands(cli, click.Context(cli))
        for parameter in command.params
        if isinstance(parameter.type, click.Path) and not isinstance(parameter.type, kinds)
    ]
    assert not found


def test_help_says_that_a_bundle_may_be_at_an_address(intaglio: Run) -> None:
    sentence = "BUNDLE and --output: a folder, or an address such as s3://models/llama."
    assert sentence in intaglio("compress", "--help")[1]
    assert "an address such as" not in intaglio("doctor", "--help")[1]
