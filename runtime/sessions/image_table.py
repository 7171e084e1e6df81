"""The images in the prompts of a decoder: embeddings by the ids of their tokens.

The ids are beyond the vocabulary, and belong to what an image shows: the same image has the same ids in every prompt,
and no other image ever has them. So prompts that begin alike share their caches only if their images are the same.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError, UsageError

Floats = npt.NDArray[np.float32]

BLOCK = 1 << 20  # ids of an image, more than any has tokens
KNOWN = 4096  # images whose ids are remembered; later ones of the rest get new ids
KEPT_BYTES = 64 << 20  # of the embeddings that are kept for further prompts


@dataclass(frozen=True, eq=False)
class EmbeddedImage:
    """An image. Whoever needs its embeddings holds it; without a holder they are released."""

    first: int  # id of its first token
    rows: Floats  # [tokens, width]

    @property
    def ids(self) -> range:
        """The ids of its tokens."""
        return range(self.first, self.first + len(self.rows))


def with_ids(tokens: Sequence[int], token_id: int, images: Iterable[EmbeddedImage]) -> list[int]:
    """The tokens of a prompt with the ids of `images` in the places of `token_id`, of which there are as many."""
    ids = (number for image in images for number in image.ids)
    return [next(ids) if token == token_id else token for token in tokens]


class ImageTable:
    """The images in prompts. Thread-safe."""

    def __init__(self, vocabulary: int, width: int):
        """`vocabulary`: token ids of texts are below it. `width`: of an embedding; 0 without images."""
        self._vocabulary, self._width = vocabulary, width
        self.none = np.zeros((min(width, 1), width), np.float32)  # the embeddings of a step without images
        self._first: OrderedDict[bytes, int] = OrderedDict()  # what identifies an image -> id of its first token
        self._given = 0  # images that got ids
        self._held: weakref.WeakValueDictionary[int, EmbeddedImage] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[int, EmbeddedImage] = OrderedDict()  # kept for further prompts
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> EmbeddedImage | None:
        """The image that `digest` identifies, if its embeddings are still there."""
        with self._lock:
            found = self._held.get(self._first.get(digest, -1))
            return self._keep(found) if found is not None else None

    def add(self, digest: bytes, rows: Floats) -> EmbeddedImage:
        """Add an image with its embeddings [tokens, width]."""
        if rows.shape[1:] != (self._width,) or not 0 < len(rows) < BLOCK:
            raise EngineError(f"image embeddings {list(rows.shape)}: expected [tokens, {self._width}]. Re-export it.")
        with self._lock:
            first = self._first.pop(digest, None)
            if first is None:
                first = self._vocabulary + self._given * BLOCK
                self._given += 1
            self._first[digest] = first
            if len(self._first) > KNOWN:
                self._first.popitem(last=False)
            found = self._held.get(first) or EmbeddedImage(first, rows)  # another thread may have been faster
            self._held[first] = found
            return self._keep(found)

    def _keep(self, image: EmbeddedImage) -> EmbeddedImage:
        """Keep the embeddings of the images that were used last."""
        self._recent.pop(image.first, None)
        self._recent[image.first] = image
        while sum(each.rows.nbytes for each in self._recent.values()) > KEPT_BYTES:
            self._recent.popitem(last=False)
        return image

    def place(self, new_tokens: Sequence[Sequence[int]]) -> tuple[Sequence[Sequence[int]], Floats]:
        """The tokens of a step with images, as its graph takes them: ids, and the embeddings [image tokens, width].

        Row i is for the id `vocabulary` + i. Raises `UsageError` for an id of no image.
        """
        if not self._width or all(max(tokens, default=0) < self._vocabulary for tokens in new_tokens):
            return new_tokens, self.none
        rows: list[Floats] = []
        placed = [[self._place(token, rows) for token in tokens] for tokens in new_tokens]
        return placed, np.stack(rows)

    def _place(self, token: int, rows: list[Floats]) -> int:
        if token < self._vocabulary:
            return token
        number, place = divmod(token - self._vocabulary, BLOCK)
        image = self._held.get(self._vocabulary + number * BLOCK)
        if image is None or place >= len(image.rows):
            raise UsageError(f"token id {token}: expected 0 to {self._vocabulary - 1}, or the id of an image.")
        rows.append(image.rows[place])
        return self._vocabulary + len(rows) - 1
