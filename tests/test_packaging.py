"""Metadata of the distribution, and licenses of the files in the repository."""

from __future__ import annotations

import hashlib
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml
from documentation import installations, printed_extras
from import_graph import STAGES
from install_check import commands
from same_wheel import difference

import intaglio

ROOT = Path(__file__).parent.parent
APACHE = (
    "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of the official text, including the appendix
)
BUILD = "import sys; from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The .dist-info of a wheel of this checkout."""
    folder = tmp_path_factory.mktemp("metadata")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.dist-info")
    return found


def test_license_is_the_official_text() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


def test_wheel_contains_license_and_notice(metadata: Path) -> None:
    for name in ("LICENSE", "NOTICE"):
        assert (metadata / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()


def test_wheel_metadata_has_license_version_and_authors(metadata: Path) -> None:
    fields = Parser().parsestr((metadata / "METADATA").read_text())
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Version"] == intaglio.__version__
    assert fields["Author"] == "The Intaglio developers"
    assert fields["Keywords"]
    assert "Typing :: Typed" in fields.get_all("Classifier", [])
    assert not any("License ::" in each for each in fields.get_all("Classifier", []))  # replaced by SPDX
    assert fields["Project-URL"] is None


def test_every_printed_installation_is_possible(metadata: Path) -> None:
    fields = Parser().parsestr((metadata / "METADATA").read_text())
    extras = printed_extras()
    assert len(extras) > 8 and extras.keys() <= set(fields.get_all("Provides-Extra", []))
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    lines = list(installations())
    assert len(lines) > 30
    for name, line in lines:
        for package, version in re.findall(r"([\w-]+)==([\w.]+)", line):
            assert pinned[package] == version, f"{name}: {line}"


def test_lines_of_the_pages_are_resolved_with_the_wheel() -> None:
    """What `make install-test` gives to pip, for each spelling of a line."""
    found = dict(commands(Path("a.whl")))
    assert found["README.md: pip install 'intaglio[cpu,export,speech]' hama==1.7.0"] == [
        "a.whl[cpu,export,speech]", "hama==1.7.0",
    ]  # fmt: skip
    pinned = ["--constraint", "constraints.txt", "a.whl[cpu,export]"]
    assert found["docs/reference.md: pip install --constraint constraints.txt '.[cpu,export]'"] == pinned
    assert ["a.whl[cpu]"] in found.values() and ["peft"] in found.values()
    assert len({tuple(words) for words in found.values()}) == len(found) > 20
    assert not [line for line, words in found.items() if any("intaglio" in word or "$" in word for word in words)]


def test_wheels_of_other_sources_are_told_apart(tmp_path: Path) -> None:
    """What `make sdist-test` compares."""
    whole = {"intaglio/_kernels.so": "code", "intaglio/a.py": "1", "x.dist-info/WHEEL": "any"}
    changes: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
        (whole, whole | {"x.dist-info/WHEEL": "linux"}, []),
        (whole, whole | {"intaglio/a.py": "2"}, ["not the same: intaglio/a.py"]),
        (whole, whole | {"intaglio/b.py": ""}, ["only in two.whl: intaglio/b.py"]),
        (whole | {"intaglio/b.py": ""}, whole, ["only in one.whl: intaglio/b.py"]),
        ({"intaglio/a.py": "1"}, {"intaglio/a.py": "1"}, ["not in one.whl: _kernels.so"]),
    ]
    for first, second, expected in changes:
        for name, files in (("one.whl", first), ("two.whl", second)):
            with zipfile.ZipFile(tmp_path / name, "w") as wheel:
                for path, text in files.items():
                    wheel.writestr(path, text)
        found = difference(tmp_path / "one.whl", tmp_path / "two.whl")
        assert [line.replace(f"{tmp_path}/", "") for line in found] == expected


def test_wheel_has_no_workshop(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", declared.update)
    runpy.run_path(str(ROOT / "setup.py"))
    tops = {folder.split("/")[0] for folder in declared["package_dir"].values()}
    assert tops == {"intaglio", *STAGES} and set(declared["packages"]) == set(declared["package_dir"])
    names = {part for package in declared["packages"] for part in package.split(".")}
    assert not names & {"tests", "examples", "benchmarks", "emulator", "cuda_emulator", "speech_corpus"}
    files = {
        path
        for package, patterns in declared["package_data"].items()
        for pattern in patterns
        if package
        for path in (ROOT / declared["package_dir"][package]).glob(pattern)
    }
    assert files and max(path.stat().st_size for path in files) < 300_000  # no corpus, no model


def test_third_party_texts_are_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in notice
    texts = [ROOT / "intaglio" / "samples" / "sentences.txt", *(ROOT / "examples").rglob("*.txt")]
    texts = [text for text in texts if "facts" not in text.parts]  # the planner's, which are our own
    assert len(texts) == 4
    for text in texts:
        assert f"  {text.relative_to(ROOT)} " in notice


def test_weights_state_their_license() -> None:
    folders = {path.relative_to(ROOT / "examples").parts[0] for path in (ROOT / "examples").rglob("*.safetensors")}
    assert folders == {"agent_patterns", "chat_model_drafts", "language_models", "planner", "text_to_text"}
    for folder in folders:
        assert "Apache License 2.0" in terms_of(folder)
    assert terms_of("language_models") in (ROOT / "examples" / "train_language_models.py").read_text()  # writes it
    assert terms_of("text_to_text") in (ROOT / "examples" / "train_text_to_text.py").read_text()


def terms_of(folder: str) -> str:
    return (ROOT / "examples" / folder / "README.md").read_text().partition("\nTerms: ")[2]


def test_no_source_carries_a_license_of_its_own() -> None:
    """Every file is under LICENSE, but for the texts in NOTICE and folders with a LICENSE of their own."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = [
        ROOT / name for name in listed if name.endswith((".py", ".cpp", ".h", ".cu", ".cuh", ".sh", ".toml", ".yml"))
    ]
    stated = re.compile(r"^\s*(?:#|//|\*)?\s*(?:SPDX-License-Identifier|Copyright \(c\)|Copyright ©)", re.I | re.M)
    assert len(files) > 900
    assert [path for path in files if path.is_file() and stated.search(path.read_text(encoding="utf-8"))] == []
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == "Apache-2.0"


def test_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (intaglio.__version__, "Apache-2.0")


WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))


def made(job: dict[str, Any]) -> set[str]:
    """The targets that a job makes."""
    rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    runs = [
        re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name, row=row: row.get(name[1], ""), step.get("run", ""))
        for step in job["steps"]
        for row in rows
    ]
    return {name for run in runs for line in re.findall(r"^make ([a-z0-9 -]+)", run, re.M) for name in line.split()}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_pin_actions_read_only_and_make_what_exists(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    for step in (step for job in workflow["jobs"].values() for step in job["steps"]):
        assert "uses" not in step or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
    named = {target for job in workflow["jobs"].values() for target in made(job)}
    assert named and named <= TARGETS, named - TARGETS


def test_workflows_run_every_test_of_the_makefile() -> None:
    others = {"proofs", "families", "sanitize", "docs", "notebooks"}
    inside = set(re.findall(r"\$\(MAKE\) ([\w-]+)$", (ROOT / "Makefile").read_text(), re.M))  # by another target
    tests = {name for name in TARGETS if name.endswith("test")} - inside | others
    assert len(tests) > 10 and tests <= TARGETS
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    assert tests - {target for job in jobs for target in made(job)} == set()
    tested = WORKFLOWS["tests"]["jobs"]["make"]["strategy"]["matrix"]["include"]
    supported = re.findall(
        r"^  \"Programming Language :: Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert [row["python"] for row in tested if row["target"] == "test"] == [supported[0], supported[-1]]
    assert WORKFLOWS["release"]["jobs"]["test"]["strategy"]["matrix"]["python"] == supported


def test_release_publishes_without_other_permissions() -> None:
    assert WORKFLOWS["release"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}  # nothing it runs is ours
