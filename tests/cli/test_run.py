"""`intaglio run` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from intaglio.cli.options.text_lines import lines

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("options", [(), ("--similarity",)])
def test_text_beyond_the_limit_is_an_error_that_names_truncate(
    options: tuple[str, ...], intaglio: Run, tiny_bundle: Path
) -> None:
    code, _, err = intaglio("run", tiny_bundle, "x " * 400, "b", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "the model takes at most" in err and err.endswith("Or truncate it with --truncate.\n")
    assert intaglio("run", tiny_bundle, "x " * 400, "b", *options, "--truncate")[0] == 0


def test_input_file_is_closed_with_the_command(tmp_path: Path) -> None:
    """Not when its lines are collected as garbage: an error's traceback may keep them for long."""
    file = tmp_path / "texts.txt"
    file.write_text("a\nb\n")
    with click.Context(click.Command("run")):
        read = lines(file)
        assert next(read) == "a"
    with pytest.raises(ValueError, match="closed"):
        next(read)


@pytest.mark.parametrize("options", [("--labels", "a,b"), ("--embed-texts",)])
def test_options_of_images_are_refused_for_recordings(
    options: tuple[str, ...], intaglio: Run, recogniser: Path
) -> None:
    code, out, err = intaglio("run", recogniser, "a.wav", *options)
    assert (code, out) == (2, "") and f"{options[0]} is for models that compare images with texts" in err
