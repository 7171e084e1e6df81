"""`intaglio run` of a model that reads images: its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from intaglio.cli.running.command import gathered, section
from intaglio.errors import UsageError


@dataclass(frozen=True)
class ImageFlags:
    """The image options on the command line; None or False for those not given."""

    labels: str | None
    embed_texts: bool

    def refuse(self, bundle: Path) -> None:
        """Raise `UsageError` if one was given for a bundle that takes something else."""
        if self.labels is not None or self.embed_texts:
            option = "--embed-texts" if self.embed_texts else "--labels"
            raise UsageError(
                f"{option} is for models that compare images with texts, and {bundle} is none. Leave it out."
            )

    @property
    def texts(self) -> list[str] | None:
        """The texts of --labels; None without it. Raises `UsageError` beside --embed-texts."""
        if self.labels is None:
            return None
        if self.embed_texts:
            raise UsageError(
                "--labels are compared with images, and --embed-texts embeds texts. Leave one of them out."
            )
        return [label.strip() for label in self.labels.split(",")]


# The options of images, which a command gets as `images`.
image_flags = gathered(
    "images",
    ImageFlags,
    section("Images"),
    click.option("--labels", help="Texts that each image is compared with, separated by commas (CLIP, SigLIP)."),
    click.option("--embed-texts", is_flag=True, help="Embed TEXTS with a model that compares images with texts."),
)
