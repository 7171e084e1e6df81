"""The memory of packed weights: the pages of a mapped file that they were read from leave the process."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from operator_bounds import check_outputs
from operator_cases import Case

from intaglio.bundle.model_file import save
from intaglio.compression import compress
from intaglio.plugins import OPS
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.kernel_check.node_model import feeds, node_model
from intaglio.runtime.engines.opening import open_engine

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mapped pages are listed by Linux alone")

CHANNELS, DEPTH, GROUP = 4500, 2048, 64  # 9 MB in 8 bits: several pieces, the last tile in part


def resident(path: Path) -> int:
    """Bytes of `path` that this process has mapped and in memory."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    found = [int(re.search(r"^Rss: +(\d+) kB", each, re.MULTILINE)[1]) for each in mappings if f"{path}\n" in each]
    assert found, "the weights are not mapped"
    return sum(found) * 1024


@pytest.mark.parametrize("zero_points", ["none", "all 3", "each its own"])
def test_opened_group_matmul_keeps_no_page_of_its_file(tmp_path, zero_points):
    random = np.random.default_rng(4)
    packed = pack(random.integers(0, 256, (CHANNELS, DEPTH)), 8)
    scales = random.uniform(2.0**-9, 2.0**-8, (CHANNELS, DEPTH // GROUP)).astype(np.float32)
    zeros = random.integers(0, 256, scales.shape) if zero_points == "each its own" else np.full(scales.shape, 3)
    inputs = (packed, scales) if zero_points == "none" else (packed, scales, zeros.astype(np.uint8))
    attributes = {"bits": 8, "K": DEPTH, "group_size": GROUP, "activation_bits": 32}
    _check(tmp_path, Case("GroupMatMul", (_x(random), *inputs), attributes))


def test_opened_lut_matmul_keeps_no_page_of_its_file(tmp_path):
    random = np.random.default_rng(5)
    packed = pack(random.integers(0, 16, (2 * CHANNELS, DEPTH)), 4)
    lut = random.normal(size=(2 * CHANNELS, 16)).astype(np.float32)
    attributes = {"bits": 4, "K": DEPTH, "activation_bits": 32}
    _check(tmp_path, Case("LutMatMul", (_x(random), packed, lut), attributes))


def _x(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=(2, DEPTH)).astype(np.float32)


def _check(folder: Path, case: Case) -> None:
    path = folder / "model.onnx"
    save(node_model(case, constants=True), path, external_above=0)
    with open_engine(path) as engine:
        assert resident(path.with_name("model.onnx.data")) < case.inputs[1].nbytes / 8
        got = engine.run(feeds(case, constants=True))
    check_outputs(case, [*got.values()], OPS[case.operator].reference(case.inputs, case.attributes))


def test_weights_in_a_bundles_own_file_are_mapped_where_kernels_pack_them(tiny_bundle: Path, tmp_path: Path) -> None:
    compress(tiny_bundle, tmp_path / "packed", "rtn")
    path = tmp_path / "packed" / "model.onnx"
    with open_engine(path.parent):
        assert resident(path) < path.stat().st_size
