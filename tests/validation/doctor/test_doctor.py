"""`intaglio doctor` in environments that are fine, and in damaged ones."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from package_metadata import fake

from intaglio.extras import PURPOSE
from intaglio.plugins import ort
from intaglio.validation.doctor import packages
from intaglio.validation.doctor.doctor import doctor
from intaglio.validation.doctor.kernels import kernels
from intaglio.validation.doctor.private import without_home

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]


def test_this_environment_is_healthy(intaglio: Run) -> None:
    code, out, err = intaglio("doctor", "--json")
    found = json.loads(out)
    assert (code, err, found["problems"], found["healthy"]) == (0, "", [], True)
    versions = {each["name"]: each["version"] for each in found["packages"]}
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert {each["name"] for each in found["extras"]} == PURPOSE.keys()
    assert found["kernels"]["chosen"] == ort.instruction_set()
    assert set(found["kernels"]["operators"]) == set(ort.operators())


def test_verbose_version_prints_the_same(intaglio: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # other tests change the size of the usual one
    code, out, _ = intaglio("doctor")
    assert "Nothing is broken." in out
    assert intaglio("--version", "-v") == (code, out, "")
    assert intaglio("--version") == (0, f"intaglio, version {importlib.metadata.version('intaglio')}\n", "")
    code, _, err = intaglio("-v", "recipes")
    assert code == 2 and "intaglio COMMAND -v" in err


def test_heavy_libraries_are_not_imported() -> None:
    code = (
        "import sys, intaglio; intaglio.doctor(); print({'torch', 'transformers', 'tensorrt_rtx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_wrong_versions_and_missing_packages_are_named(site: Path, intaglio: Run) -> None:
    needs = ("numpy>=1.26", "absent-package>=2", "middle[fast]; extra == 'cpu'", "intaglio[cpu]; extra == 'whole'")
    fake(site, "intaglio", "0.1.0", *needs, "torch>=99; extra == 'part'", "other-absent; extra == 'part'",
         extras=("cpu", "whole", "part"))  # fmt: skip
    fake(site, "numpy", "1.20.1")
    fake(site, "middle", "1.0", "below<2; extra == 'fast'", "unused; extra == 'slow'", extras=("fast", "slow"))
    fake(site, "below", "2.5")
    code, out, _ = intaglio("doctor", "--json")
    found = json.loads(out)
    assert (code, found["healthy"]) == (1, False)
    assert sorted(found["problems"]) == [
        "intaglio 0.1.0 requires absent-package>=2, which is not installed. Run: pip install 'absent-package>=2'",
        "intaglio 0.1.0 requires numpy>=1.26, and 1.20.1 is installed. Run: pip install 'numpy>=1.26'",
        "middle 1.0 requires below<2, and 2.5 is installed. Run: pip install 'below<2'",
    ]
    missing = {each["name"]: each["missing"] for each in found["extras"]}
    assert missing == {"cpu": [], "whole": [], "part": ["other-absent"]}  # so its torch may serve another program


def test_package_without_a_version_is_broken(site: Path) -> None:
    fake(site, "intaglio", "0.1.0", "numpy>=1.26")
    fake(site, "numpy", "")
    (problem,) = packages.installed().problems
    assert "an unknown version is installed" in problem


def test_two_copies_of_intaglio_and_of_onnxruntime_are_found(site: Path) -> None:
    fake(site, "intaglio", "0.0.1", "onnxruntime>=1", "onnxruntime-gpu>=1")
    fake(site, "onnxruntime", "1.31")
    fake(site, "onnxruntime-gpu", "1.31")
    copies, same_files = packages.installed().problems
    assert "0.1.0 runs, and 0.0.1 is installed" in copies
    assert "pip uninstall onnxruntime onnxruntime-gpu" in same_files


def test_onnxruntime_that_cannot_be_imported_is_broken(tmp_path: Path) -> None:
    if ort.library() is None:
        pytest.skip("no compiled library")
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("import numpy.a_part_of_another_version\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "intaglio", "doctor", "--json"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1
    assert re.match("onnxruntime is installed and cannot be imported: No module named 'numpy.a_part_of", problem)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"no library", "invalid ELF header|file too short"), (None, signal.Signals.SIGBUS.name)],
    ids=["text", "truncated"],
)
def test_library_that_does_not_load_is_broken(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ort.library()
    if whole is None:
        pytest.skip("no compiled library")
    damaged = tmp_path / "_kernels.so"
    damaged.write_bytes(content or whole.read_bytes()[:100_000])
    monkeypatch.setattr(ort, "library", lambda: damaged)
    found = kernels()
    assert (found.library, found.loads) == (str(damaged), False)
    assert re.match(f"the library of CPU kernels does not load: .*({reason}).*pip install --force", found.problems[0])


def test_lost_library_is_broken_and_one_that_never_was_is_not(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "library", lambda: None)
    fake(site, "intaglio", "0.1.0")
    record = site / "intaglio-0.1.0.dist-info" / "RECORD"
    record.write_text("intaglio/__init__.py,,\n")
    found = doctor()
    assert found.healthy and "without a C++ compiler" in found.notices[0]
    record.write_text("intaglio/plugins/ort/_kernels.so,,\n")
    found = doctor()
    assert not found.healthy and "no longer there" in found.problems[0]
    assert found.notices == []


def test_unknown_instruction_set_is_broken(site: Path, monkeypatch: pytest.MonkeyPatch, intaglio: Run) -> None:
    fake(site, "intaglio", "0.1.0")
    monkeypatch.setenv("INTAGLIO_ISA", "mmx")
    code, out, _ = intaglio("doctor", "--json")
    found = json.loads(out)
    assert code == 1 and found["problems"][0].startswith("INTAGLIO_ISA=mmx: this CPU offers portable")
    assert found["system"]["environment"]["INTAGLIO_ISA"] == "mmx"


def test_damaged_table_of_micro_kernels_is_broken_and_caches_have_sizes(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(site, "intaglio", "0.1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table = tmp_path / "intaglio" / f"micro-kernels-{ort.cpu()}.json"
    (tmp_path / "intaglio" / "kernels").mkdir(parents=True)
    (tmp_path / "intaglio" / "kernels" / "one").write_bytes(bytes(1000))
    table.write_text("{")
    found = doctor()
    assert [(Path(each.path).name, each.bytes) for each in found.caches] == [("kernels", 1000), (table.name, 1)]
    (problem,) = found.problems
    assert "not a table of micro-kernels" in problem


def test_cache_whose_files_are_removed_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "intaglio" / "kernels" / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(1000))
    walk = os.walk

    def walk_and_remove(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        (kept.parent / "removed").touch()
        for found in walk(top):
            (kept.parent / "removed").unlink()
            yield found

    monkeypatch.setattr(os, "walk", walk_and_remove)
    assert [each.bytes for each in doctor().caches] == [1000]


def test_home_directory_is_not_shown(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(site, "intaglio", "0.1.0")
    home = (ort.library() or Path(ort.__file__)).parents[
        2
    ]  # the library of a checkout is not beside the installed module
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    found = doctor()
    assert found.kernels.library is None or found.kernels.library.startswith("~/plugins/ort/")
    assert found.system.environment["XDG_CACHE_HOME"] == "~/cache"
    assert without_home(f"{home}/a {home} {home}er/b {home}-2") == f"~/a ~ {home}er/b {home}-2"
    monkeypatch.setenv("HOME", "/")
    assert without_home("/a/b") == "/a/b"


def test_missing_required_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['msgspec'] = None")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "intaglio", "doctor"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == ("intaglio: msgspec is not installed, which Intaglio requires. Run: pip install intaglio\n")


def test_bundles_fetched_to_another_place_are_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("INTAGLIO_BUNDLE_CACHE", str(tmp_path / "large-disk"))
    (tmp_path / "large-disk" / "0123" / "tiny").mkdir(parents=True)
    (tmp_path / "large-disk" / "0123" / "tiny" / "model.onnx").write_bytes(bytes(1000))
    found = doctor()
    assert [(Path(each.path).name, each.bytes) for each in found.caches] == [("large-disk", 1000)]
    assert found.system.environment["INTAGLIO_BUNDLE_CACHE"] == str(tmp_path / "large-disk")


def test_extras_are_described_as_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").partition("## Install")[2]
    rows = re.findall(r"^\| `([a-z]+)` \| .* \| (.*) \|$", text.partition("\n## ")[0], re.M)
    assert {name: re.sub(r" \(\[.*\)|`", "", purpose) for name, purpose in rows} == PURPOSE
