"""The PTX of all kernels, at the versions that they state, assembled by NVIDIA's assemblers of 2022 to now."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from intaglio.plugins.cuda.compiler import compile_kernel, newest_for
from intaglio.plugins.cuda.launching.launches import kernel_folders

pytest.importorskip("cuda.bindings.nvrtc")

# Packages with the assembler of a CUDA release, the oldest and the newest of each, with the GPUs that it knows.
FIRST, BLACKWELL = (75, 80, 86), (75, 80, 86, 89, 90, 100, 120)
ASSEMBLERS = {
    "nvidia-cuda-nvcc-cu11==11.7.99": FIRST,
    "nvidia-cuda-nvcc-cu11==11.8.89": (*FIRST, 89, 90),
    "nvidia-cuda-nvcc-cu12==12.0.76": (*FIRST, 89, 90),
    "nvidia-cuda-nvcc-cu12==12.9.86": BLACKWELL,
    "nvidia-cuda-nvcc==13.0.48": BLACKWELL,
    "nvidia-cuda-nvcc": BLACKWELL,
}


@pytest.fixture(scope="module", params=ASSEMBLERS)
def assembler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, ...]]:
    """The path of ptxas, and the GPUs that it assembles for."""
    folder = tmp_path_factory.mktemp("assembler")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), request.param]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{request.param} cannot be downloaded")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("bin/ptxas")]
        path = Path(archive.extract(name, folder))
    path.chmod(0o755)
    return path, ASSEMBLERS[request.param]


def refusal(assembler: Path, ptx: bytes, sm: int, folder: Path) -> str:
    (folder / "kernel.ptx").write_bytes(ptx)
    command = [assembler, f"-arch=sm_{sm}", "-o", folder / "kernel.cubin", folder / "kernel.ptx"]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.proof
@pytest.mark.parametrize("folder", kernel_folders())
def test_ptx_is_assembled(assembler: tuple[Path, tuple[int, ...]], folder: str, tmp_path: Path) -> None:
    path, gpus = assembler
    for sm in gpus:
        built_for = newest_for(sm)
        assert built_for is not None
        ptx = compile_kernel(folder, built_for).ptx
        assert not refusal(path, ptx, sm, tmp_path)


@pytest.mark.proof
def test_newer_version_or_instruction_is_refused(assembler: tuple[Path, tuple[int, ...]], tmp_path: Path) -> None:
    path, _ = assembler
    ptx = compile_kernel("int_linear", 75).ptx
    assert "99.0" in refusal(path, ptx.replace(b".version 6.5", b".version 99.0"), 75, tmp_path)
    assert "requires PTX ISA .version 6.5" in refusal(path, ptx.replace(b".version 6.5", b".version 6.4"), 75, tmp_path)
