"""The verb `compress`, with the sensitivities that a recipe goes by computed where they are not given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from intaglio.files import check_output_directory, sibling_directory
from intaglio.graph_passes.compress import Compressed
from intaglio.graph_passes.compress import compress as compress_with
from intaglio.graph_passes.contract import Pass, needs_calibration, needs_sensitivities
from intaglio.graph_passes.recipes import load_recipe
from intaglio.training.sensitivity import sensitivity as compute_sensitivities


def compress(
    bundle: str | Path,
    output: str | Path,
    recipe: str | Path,
    force: bool = False,
    calibration: str | Path | None = None,
    allow_float: bool = False,
    sensitivity: str | Path | None = None,
    bits: int | None = None,
    group_size: int | None = None,
    threads: int | None = None,
) -> Compressed:
    """Apply the passes of `recipe` to `bundle`, and write the result to `output`: `intaglio.graph_passes.compress`.

    Where the recipe goes by sensitivities, and only `calibration` is given, a text, they are computed from it first.
    """
    passes = load_recipe(recipe, {"bits": bits, "group_size": group_size})[1]
    with _data(Path(output), bundle, passes, calibration, sensitivity, force, threads) as (text, weights):
        return compress_with(bundle, output, recipe, force, text, allow_float, weights, bits, group_size, threads)


@contextmanager
def _data(
    output: Path,
    bundle: str | Path,
    passes: Sequence[Pass],
    calibration: str | Path | None,
    sensitivity: str | Path | None,
    force: bool,
    threads: int | None,
) -> Iterator[tuple[str | Path | None, str | Path | None]]:
    """What the passes get for `calibration` and `sensitivity`; what is missing of the second lasts for the block."""
    if calibration is None or sensitivity is not None or not any(map(needs_sensitivities, passes)):
        yield calibration, sensitivity
        return
    check_output_directory(output, force)
    with sibling_directory(output) as folder:
        compute_sensitivities(bundle, folder / "sensitivity", calibration, threads=threads)
        yield calibration if any(map(needs_calibration, passes)) else None, folder / "sensitivity"
