"""Read the images of a prompt: from files to embeddings, which take the places of image tokens in a decoder's steps."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from intaglio.bundle.bundle import Bundle, ImageEncoder
from intaglio.bundle.image_records import EMBEDDINGS, PIXELS
from intaglio.closing import Closing
from intaglio.errors import EngineError
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.image_table import EmbeddedImage, ImageTable
from intaglio.runtime.vision.frames import Grid, frames_of, grid_of
from intaglio.runtime.vision.image_file import MOST_PIXELS, Pixels, decode_image
from intaglio.targets import DEFAULT

FRAMES = 4  # of an image that are encoded together; bounds the memory


@dataclass(frozen=True)
class ImageFile:
    """The content of an image file, and what messages call it."""

    data: bytes
    name: str
    most_pixels: int = MOST_PIXELS  # one with more is refused


class ImageReader(Closing):
    """The image encoder of a bundle, opened for the first image, and the images that it read. Thread-safe."""

    def __init__(self, bundle: Bundle, table: ImageTable, target: str = DEFAULT, threads: int | None = None):
        """`table`: of the session that runs the prompts; `target` and `threads` as in `open_engine`."""
        assert bundle.manifest.image_encoder is not None, "the bundle reads images"
        self.encoder: ImageEncoder = bundle.manifest.image_encoder
        self._bundle, self._table, self._target, self._threads = bundle, table, target, threads
        self._engine: Engine | None = None
        self._lock = threading.Lock()  # one image at a time: its pixels may take 256 MiB
        self._closed = False

    def frames(self, image: ImageFile) -> tuple[Grid, Pixels]:
        """The grid and the frames of an image. Raises `UsageError` for one that is damaged, or too large."""
        with self._lock:
            pixels = decode_image(image.data, image.name, image.most_pixels)
            height, width, _ = pixels.shape
            return grid_of(height, width, self.encoder), frames_of(pixels, self.encoder)

    def embed(self, frames: Pixels) -> EmbeddedImage:
        """The embeddings of an image from its frames, computed unless they are there."""
        digest = hashlib.sha256(frames.tobytes()).digest()
        with self._lock:
            if (found := self._table.find(digest)) is not None:
                return found
            engine = self._opened()
            parts = [frames[start : start + FRAMES] for start in range(0, len(frames), FRAMES)]
            rows = np.concatenate([engine.run({PIXELS: part})[EMBEDDINGS] for part in parts])
            if rows.dtype != np.float32 or rows.shape[:2] != (len(frames), self.encoder.tokens):
                raise EngineError(
                    f"output {EMBEDDINGS}: got {rows.dtype} {list(rows.shape)}, expected float32 [{len(frames)}, "
                    f"{self.encoder.tokens}, width]. Re-export the bundle."
                )
            return self._table.add(digest, np.asarray(rows.reshape(-1, rows.shape[-1]), np.float32))

    def open(self) -> None:
        """Open the engine now, rather than for the first image."""
        with self._lock:
            self._opened()

    def _opened(self) -> Engine:
        if self._closed:
            raise EngineError("the model is closed. Open it again.")
        if self._engine is None:
            self._engine = open_engine(
                self._bundle, self._target, self._threads, spinning=False, graph=self.encoder.file
            )
        return self._engine

    def close(self) -> None:
        """Release the engine; the reader is invalid afterwards."""
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()
                self._engine = None


@contextmanager
def open_reader(bundle: Bundle, table: ImageTable, target: str, threads: int | None) -> Iterator[ImageReader | None]:
    """The reader of a bundle's images, closed in the end; None for a bundle whose model reads none."""
    if bundle.manifest.image_encoder is None:
        yield None
        return
    with ImageReader(bundle, table, target, threads) as reader:
        yield reader
