"""Embeddings of texts by a model that compares images with texts, and the scores of texts for an image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, EngineError, UsageError
from intaglio.runtime.engines.engine import EngineRunner
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.text.run_texts import in_batches
from intaglio.runtime.text.tasks import SCORES, Ran
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.targets import DEFAULT

OUTPUT = "text_embedding"  # float [batch, width], of length 1

Embeddings = npt.NDArray[np.float32]  # [texts or images, width]


class TextEmbedder(EngineRunner):
    """The graph for texts of an opened bundle. A context manager."""

    def __init__(self, bundle: Bundle, target: str = DEFAULT, threads: int | None = None):
        """`threads`: see `open_engine`. Raises `UsageError` for a bundle that reads no texts."""
        text, path = bundle.manifest.text, bundle.path / TOKENIZER
        if text is None:
            raise UsageError(f"bundle {bundle.path}: reads images and no texts. Export a model that compares the two.")
        if TOKENIZER not in bundle.manifest.files or [spec.name for spec in text.outputs] != [OUTPUT]:
            raise BundleError(f"bundle {bundle.path}: no tokenizer, or no output {OUTPUT}. Re-export it.")
        self._text = text
        axis = text.axes.get("sequence")
        length = axis.maximum if axis else text.padded_to or None
        self._tokenizer = Tokenizer(path, [spec.name for spec in text.inputs], length)
        self.engine = open_engine(bundle, target, threads, graph=text.file)

    def embed(self, texts: Sequence[str], truncate: bool = False) -> Embeddings:
        """One row for each text. Raises `UsageError` for one that is too long, unless `truncate`."""
        sequences = self._tokenizer.encode(texts, truncate)
        for text, sequence in zip(texts, sequences, strict=True):
            self._tokenizer.check_length(text, sequence)
        found = self.engine.run(dict(self._tokenizer.pad(sequences, least=self._text.padded_to)))[OUTPUT]
        if found.dtype.kind != "f" or found.ndim != 2 or len(found) != len(texts):
            raise EngineError(
                f"output {OUTPUT}: got {found.dtype} {list(found.shape)}, expected floats [{len(texts)}, width]. "
                "Re-export the bundle."
            )
        return found.astype(np.float32)


class ZeroShot:
    """Texts that images are compared with."""

    def __init__(self, bundle: Bundle, labels: Sequence[str], target: str = DEFAULT, threads: int | None = None):
        """Embed `labels`. Raises `UsageError` for an empty or repeated one."""
        if not all(label.strip() for label in labels) or len(set(labels)) != len(labels):
            raise UsageError(f"labels {', '.join(labels)[:80]!r}: expected different texts that are not empty.")
        with TextEmbedder(bundle, target, threads) as embedder:
            self._embeddings = embedder.embed(labels).astype(np.float64)
        self._labels, self._activation = list(labels), SCORES[bundle.manifest.activation]
        text = bundle.manifest.text
        assert text is not None  # the embedder was opened
        self._scale, self._bias = text.scale, text.bias

    def scores(self, name: str, embedding: npt.NDArray[np.float32]) -> Ran:
        """The label and the scores of one image, whose embedding is [width]; `name` is the result's text."""
        if embedding.shape != self._embeddings.shape[1:]:
            raise EngineError(
                f"image embedding of {len(embedding)} numbers, those of texts have {self._embeddings.shape[1]}. "
                "Re-export the bundle."
            )
        logits = self._embeddings @ embedding.astype(np.float64) * self._scale + self._bias
        row = self._activation(logits[None])[0]
        order = np.argsort(-row, kind="stable")
        scores = {self._labels[index]: float(row[index]) for index in order}
        return Ran(name, label=self._labels[int(order[0])], scores=scores)


def embed_texts(
    bundle: Bundle,
    texts: Iterable[str],
    target: str = DEFAULT,
    batch_size: int = 32,
    truncate: bool = False,
    threads: int | None = None,
) -> Iterator[Ran]:
    """The embedding of each of `texts`, in order, in batches of `batch_size`."""
    with TextEmbedder(bundle, target, threads) as embedder:
        for batch in in_batches(texts, batch_size):
            yield from (
                Ran(text, embedding=row) for text, row in zip(batch, embedder.embed(batch, truncate), strict=True)
            )
