"""The interface of a modality: the differences between bundles for text, audio, or other data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.speech.recognizer import SpeechOptions
from intaglio.runtime.speech.recordings.run_recordings import Transcribed, TranscribedSegments
from intaglio.runtime.text.inputs import InputsUsed
from intaglio.runtime.text.span_options import NO_SPANS, SpanOptions
from intaglio.runtime.text.tasks import Ran
from intaglio.targets import DEFAULT

Feeds = dict[str, Array]  # input name -> array


class LoadInputs(Protocol):
    """Loads batches of feeds for a bundle, with their origin.

    `data` is the user's file, or None for the inputs that ship with intaglio; the first `samples` of it are used, at
    most `batch_size` in a batch. `option` is the option that named the file. Raises `UsageError` for a file without
    inputs, `EngineError` for arrays that do not fit.
    """

    def __call__(  # noqa: D102
        self, bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
    ) -> tuple[list[Feeds], InputsUsed]: ...


class Mask(Protocol):
    """The real positions of a batch's outputs, [batch, positions], 0 at padding; None if the modality is another.

    It is in the feeds, or in the outputs of either compared model.
    """

    def __call__(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Array | None: ...  # noqa: D102


@dataclass(frozen=True)
class RunOptions:
    """The options of the verb `run`; each modality reads those that it has."""

    target: str = DEFAULT
    batch_size: int = 32  # texts
    truncate: bool = False  # texts
    top: int = 5  # words for a blank of a text
    prompt_name: str | None = None  # put before each text to embed; None: the bundle's default
    speech: SpeechOptions | None = None  # recordings
    query: str | None = None  # that a classifier reads with each text
    labels: Sequence[str] | None = None  # texts that each image is compared with
    embed_texts: bool = False  # the inputs are texts for a model of images and texts
    threads: int | None = None  # of ONNX Runtime
    spans: SpanOptions = NO_SPANS  # of texts
    truncate_dim: int | None = None  # of embeddings of texts

    def check_no_texts(self, items: str) -> None:
        """Raise `UsageError` for options of texts, for a bundle that takes `items`."""
        given = {
            "--prompt-name is for embeddings of texts": self.prompt_name,
            "--query is for classifiers of texts": self.query,
            "--truncate-dim is for embeddings of texts": self.truncate_dim,
        }
        for what in (what for what, value in given.items() if value is not None):
            raise UsageError(f"{what}, and the bundle takes {items}. Leave it out.")
        self.spans.check(items)


class RunInputs(Protocol):
    """Runs an opened bundle on inputs, texts or paths of files, and yields one result for each, in order."""

    def __call__(  # noqa: D102
        self, bundle: Bundle, inputs: Iterable[str], options: RunOptions
    ) -> Iterator[Ran | Transcribed | TranscribedSegments]: ...


@dataclass(frozen=True)
class Workload:
    """What the verb `bench` runs: batches of inputs that ship with intaglio or are made; no files are read.

    kind        of a bundle
    unit        of what throughput counts
    per_item    number of units of an input
    open        opens a bundle for a target; returns a function that runs a batch of the inputs with these numbers
    """

    kind: str
    unit: str
    per_item: int
    open: Callable[[Bundle, str], Callable[[Sequence[int]], object]]


@dataclass(frozen=True)
class Modality:
    """A modality.

    load        inputs for validation, and for comparison with the source model
    calibration inputs for calibration, where indistinguishable padding would be observed too
    mask        which positions of the outputs are compared
    run         the verb `run`
    files       the files that an option names: of a folder, or one; None for texts, which are lines
    workload    the verb `bench`; None for texts, whose prompts may be the user's
    """

    load: LoadInputs
    calibration: LoadInputs
    mask: Mask
    run: RunInputs
    files: Callable[[Path, str], list[Path]] | None = None
    workload: Workload | None = None
