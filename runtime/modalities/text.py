"""Text: sentences for encoders, chunks of a text for decoders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.modalities.modality import Feeds, Modality, RunOptions
from intaglio.runtime.text.chunks import load_chunks
from intaglio.runtime.text.inputs import MASK, InputsUsed, load_inputs
from intaglio.runtime.text.run_texts import run
from intaglio.runtime.text.tasks import Ran
from intaglio.runtime.text.token_inputs import load_token_inputs


def _load(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[Feeds], InputsUsed]:
    load = load_inputs if bundle.manifest.decoder is None else load_token_inputs
    return load(bundle, data, samples, batch_size, option)


def _calibration(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[Feeds], InputsUsed]:
    if bundle.manifest.decoder is not None and data is not None and Path(data).suffix != ".npz":
        return load_chunks(bundle, Path(data), samples, batch_size, option)
    return load_inputs(bundle, data, samples, batch_size, option)


def _mask(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Array | None:
    mask = feeds.get(MASK)
    return mask if mask is not None and mask.ndim == 2 else None


def _run(bundle: Bundle, inputs: Iterable[str], options: RunOptions) -> Iterator[Ran]:
    texts = options.batch_size, options.truncate, options.top, options.threads, options.prompt_name, options.query
    return run(bundle, inputs, options.target, *texts, options.spans, options.truncate_dim)


TEXTS = Modality(_load, _calibration, _mask, _run)
