"""`intaglio run` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("options", [(), ("--similarity",)])
def test_text_beyond_the_limit_is_an_error_that_names_truncate(
    options: tuple[str, ...], intaglio: Run, tiny_bundle: Path
) -> None:
    code, _, err = intaglio("run", tiny_bundle, "x " * 400, "b", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "the model takes at most" in err and err.endswith("Or truncate it with --truncate.\n")
    assert intaglio("run", tiny_bundle, "x " * 400, "b", *options, "--truncate")[0] == 0
