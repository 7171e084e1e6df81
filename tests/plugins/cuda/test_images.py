"""Which forms of the kernels a GPU loads."""

from __future__ import annotations

import pytest

from intaglio.errors import EngineError
from intaglio.plugins.cuda import compiler


@pytest.mark.parametrize(
    ("sm", "built_for", "images"),
    [
        (75, 75, ("cubin", "ptx")),
        (80, 80, ("cubin", "ptx")),
        (86, 80, ("cubin", "ptx")),
        (89, 80, ("cubin", "ptx")),
        (90, 90, ("cubin", "ptx")),
        (100, 90, ("ptx",)),
        (120, 90, ("ptx",)),
    ],
)
def test_a_cubin_is_loaded_on_its_own_generation_only(sm: int, built_for: int, images: tuple[str, ...]) -> None:
    assert (compiler.built_for(sm), compiler.images(sm)) == (built_for, images)


def test_gpu_that_is_too_old_is_named() -> None:
    with pytest.raises(EngineError, match=r"got sm_70, expected sm_75 or newer\."):
        compiler.images(70)
