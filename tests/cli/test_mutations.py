"""Damaged input of any kind ends in a result or in one line, quickly and in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mutations
import pytest
from mutation_material import write_material

FIRST, COUNT = map(int, os.environ.get("INTAGLIO_TEST_SEEDS", "0:1").split(":"))


@pytest.fixture(scope="module")
def material(
    tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path, tiny_checkpoint: Path, tiny_int8_bundle: Path
) -> Path:
    folder = tmp_path_factory.mktemp("material")
    write_material(folder, tiny_bundle, tiny_checkpoint, tiny_int8_bundle)
    return folder


@pytest.mark.parametrize(
    ("first", "count"), [(FIRST, COUNT), pytest.param(FIRST + COUNT, 29 * COUNT, marks=pytest.mark.proof)]
)
def test_damaged_input_exits_with_an_expected_code(first: int, count: int, material: Path) -> None:
    command = [sys.executable, "-P", "-m", mutations.__name__, str(material), str(first), str(count)]
    environment = os.environ | {"PYTHONPATH": str(Path(mutations.__file__).parent)}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    *wrong, summary = map(json.loads, output.splitlines())
    assert summary == {"tried": count}
    assert not wrong, json.dumps(wrong, indent=1)
