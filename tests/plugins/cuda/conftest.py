"""Who runs a CUDA kernel: the emulator as a T4 and an A100, and a GPU."""

import pytest
from cuda_emulator import emulate
from kernel_cases import Run

from intaglio.plugins.cuda import launcher


@pytest.fixture(scope="module", params=[75, 80, "cubin", "ptx"])
def run(request) -> Run:
    """Runs the kernel of a case; the seed determines the order of threads."""
    if isinstance(request.param, int):
        return lambda case, seed: emulate(
            case.folder, case.launch(request.param), case.inputs, case.made(), request.param, seed
        )
    if launcher.device_sm() is None:
        pytest.skip("no CUDA device")
    return lambda case, _: launcher.run(
        case.folder, case.launch(launcher.kernel_sm()), case.inputs, case.made(), request.param
    )
