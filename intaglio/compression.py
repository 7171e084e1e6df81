"""The verb `compress`, with the sensitivities that a recipe goes by computed where they are not given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intaglio.graph_passes.compress import Compressed


def compress(
    bundle: str | Path,
    output: str | Path,
    recipe: str | Path,
    force: bool = False,
    calibration: str | Path | None = None,
    allow_float: bool = False,
    sensitivity: str | Path | None = None,
) -> Compressed:
    """Apply the passes of `recipe` to `bundle`, and write the result to `output`: `intaglio.graph_passes.compress`.

    Where the recipe goes by sensitivities, and only `calibration` is given, a text, they are computed from it first.
    """
    from intaglio.graph_passes import compress as apply

    with _data(Path(output), bundle, recipe, calibration, sensitivity, force) as (text, sensitivities):
        return apply(bundle, output, recipe, force, text, allow_float, sensitivities)


@contextmanager
def _data(
    output: Path,
    bundle: str | Path,
    recipe: str | Path,
    calibration: str | Path | None,
    sensitivity: str | Path | None,
    force: bool,
) -> Iterator[tuple[str | Path | None, str | Path | None]]:
    """What the passes get for `calibration` and `sensitivity`; what is missing of the second lasts for the block."""
    from intaglio.files import check_output_directory, temporary_directory
    from intaglio.graph_passes.contract import needs_calibration, needs_sensitivities
    from intaglio.graph_passes.recipes import load_recipe

    passes = load_recipe(recipe)[1]
    if calibration is None or sensitivity is not None or not any(map(needs_sensitivities, passes)):
        yield calibration, sensitivity
        return
    from intaglio.training import sensitivity as compute

    check_output_directory(output, force)
    with temporary_directory(output.absolute().parent, f".{output.name[:100]}.") as folder:
        compute(bundle, folder / "sensitivity", calibration)
        yield calibration if any(map(needs_calibration, passes)) else None, folder / "sensitivity"
