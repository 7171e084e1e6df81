"""A new operator reaches all backends by its folder and one line, in a copy of the sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from intaglio.plugins.ort import build

HERE = Path(__file__).parent
ROOT = build.ROOT
FOLDER = "scaled_clamp"
PAGE = ROOT / "docs" / "extending.md"  # includes the registry line as a diff
STAGES = ("intaglio", "plugins", "runtime", "exporters", "graph_passes", "training", "validation")
# These need neither the compiled library nor emulated kernels.
INTERPRETED = (
    "test_numpy_reference",
    "test_node_is_checked_by_its_signature",
    "test_function_body_by_the_evaluator_of_onnx",
    "test_function_body_by_plain_onnx_runtime",
    "test_work_table",
    "test_training_table",
)
TESTS = re.findall(r"^def (test_\w+)", (HERE / "backends.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def compiled() -> None:
    """The object files of this checkout's library: the copy compiles only its own part."""
    try:
        build.compiler()
    except build.CompileError as error:
        pytest.skip(str(error))
    build.build()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with the folder of the operator and its line in the registry."""
    copy = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", build.LIBRARY.name)
    for folder in (*STAGES, "tests/support"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ("setup.py", "pyproject.toml"):
        shutil.copy2(ROOT / file, copy / file)
    shutil.copytree(HERE / FOLDER, copy / "plugins" / FOLDER)
    registry = copy / "plugins" / "registry.py"
    last, added = re.search(r'^ (    "\w+",\n)\+(    "scaled_clamp",\n)', PAGE.read_text(), re.MULTILINE).groups()
    before = registry.read_text()
    registry.write_text(before.replace(last, last + added))
    assert len(registry.read_text().splitlines()) == len(before.splitlines()) + 1
    shutil.copy2(HERE / "backends.py", copy / "backends.py")
    return copy


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, with only its sources on the path and its own compiler cache."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "XDG_CACHE_HOME": str(copy / "cache")}
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(copy: Path, compiled: None) -> set[str]:
    """The library in the copy, and its newly compiled files."""
    objects = copy / "build" / "kernels"
    shutil.copytree(build.OBJECTS, objects, ignore=shutil.ignore_patterns("*.so"))
    before = {path.name for path in objects.iterdir()}
    done = run(copy, "plugins/ort/build.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str((copy / "plugins" / "ort" / build.LIBRARY.name).resolve())
    return {path.name.rpartition("-")[0] for path in objects.iterdir() if path.name not in before}


@pytest.fixture(scope="module")
def outcomes(copy: Path, built: set[str]) -> dict[str, list[ElementTree.Element]]:
    """The cases of each test of backends.py, as pytest reports them."""
    return cases_of(copy)


@pytest.fixture(scope="module")
def interpreted(copy: Path) -> dict[str, list[ElementTree.Element]]:
    """Those of `INTERPRETED`, which need no library in the copy."""
    return cases_of(copy, "-k", " or ".join(INTERPRETED))


def cases_of(copy: Path, *options: str) -> dict[str, list[ElementTree.Element]]:
    report = copy / "report.xml"
    done = run(copy, "-m", "pytest", "backends.py", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options)
    assert report.exists(), done.stdout + done.stderr
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314
    found: dict[str, list[ElementTree.Element]] = {name: [] for name in TESTS}
    for case in cases:
        found[str(case.get("name")).partition("[")[0]].append(case)
    return found


@pytest.mark.proof  # test_build compiles after changes of a source; other operators' tests use the compiled library
def test_only_the_new_operator_and_the_operator_table_are_compiled(built: set[str]) -> None:
    instruction_sets = set(build.instruction_sets()) - set(build.without_tiles())  # it multiplies no matrices
    kernels = {f"{FOLDER}-kernel-{isa}" for isa in instruction_sets}
    assert built == {"library", "ort-library", f"{FOLDER}-ort_binding", *kernels}


@pytest.mark.proof
@pytest.mark.parametrize("name", INTERPRETED)
def test_new_operator_works_without_a_compiler(name: str, interpreted: dict[str, list[ElementTree.Element]]) -> None:
    check(name, interpreted)


@pytest.mark.proof  # test_new_operator_works_without_a_compiler
@pytest.mark.parametrize("name", TESTS)
def test_new_operator_works_in_every_backend(name: str, outcomes: dict[str, list[ElementTree.Element]]) -> None:
    check(name, outcomes)


def check(name: str, outcomes: dict[str, list[ElementTree.Element]]) -> None:
    """The test ran, and none of its cases failed."""
    assert outcomes[name], "not run"
    failures = [str(each.text) for case in outcomes[name] for kind in ("failure", "error") for each in case.iter(kind)]
    assert not failures, failures[0]
    skipped = [str(each.get("message")) for case in outcomes[name] for each in case.iter("skipped")]
    if skipped:
        pytest.skip(skipped[0])


def test_documentation_lists_the_files_of_the_operator() -> None:
    chapter = (ROOT / "docs" / "extending.md").read_text().partition("\n## An operator\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w.]+)` \|", chapter, re.MULTILINE))
    assert listed == {path.name for path in (HERE / FOLDER).iterdir() if path.is_file()}
    assert (HERE / FOLDER / "signature.py").read_text().partition("\n\n")[2].partition("\n\n")[2] in chapter
