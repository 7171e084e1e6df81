"""`intaglio run` of a model that reads images: its options, and its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.running.command import gathered, section
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.runtime.text.tasks import Ran


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

    def run(
        self,
        bundle: Path,
        images: tuple[str, ...],
        file: Path | None,
        target: str,
        batch_size: int,
        threads: int | None,
    ) -> Iterator[Ran]:
        """The results of image files, given as arguments or by --input, which may name a folder of them."""
        from intaglio.bundle.bundle import Bundle
        from intaglio.runtime.vision.image_file import images_of
        from intaglio.runtime.vision.image_runner import run_images

        if bool(images) == bool(file):
            got = "both" if images else "neither"
            raise UsageError(f"images are given as arguments or by --input, got {got}. Give one of the two.")
        paths = images or [str(path) for path in images_of(file or Path(), "--input")]
        labels = [label.strip() for label in self.labels.split(",")] if self.labels is not None else ()
        return run_images(Bundle.open(bundle), paths, target, batch_size, threads, labels)

    def embed(
        self, bundle: Path, texts: Iterable[str], target: str, batch_size: int, truncate: bool, threads: int | None
    ) -> Iterator[Ran]:
        """The embeddings of texts, by a model that compares images with texts."""
        from intaglio.bundle.bundle import Bundle
        from intaglio.runtime.vision.text_tower import embed_texts

        if self.labels is not None:
            raise UsageError(
                "--labels are compared with images, and --embed-texts embeds texts. Leave one of them out."
            )
        return embed_texts(Bundle.open(bundle), texts, target, batch_size, truncate, threads)


# The options of images, which a command gets as `images`.
image_flags = gathered(
    "images",
    ImageFlags,
    section("Images"),
    click.option("--labels", help="Texts that each image is compared with, separated by commas (CLIP, SigLIP)."),
    click.option("--embed-texts", is_flag=True, help="Embed TEXTS with a model that compares images with texts."),
)
