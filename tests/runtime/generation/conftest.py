from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scheduled_models import Models, make_bundles, open_models


@pytest.fixture(scope="session")
def models(
    make_decoder: Callable[..., tuple[Path, Path]],
    make_encoder_decoder: Callable[..., tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Models]]:
    """The small random models that a scheduler drives, by name."""
    made = make_bundles(make_decoder, make_encoder_decoder, tmp_path_factory.mktemp("scheduled"))
    with open_models(made) as opened:
        yield opened
