"""Prediction alignment: fine-tune a draft model on the output of the large model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from intaglio import interrupts
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.extras import load as load_library
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.draft_model import check_task, check_vocabulary
from intaglio.runtime.generation.requests.prompts import read_prompts
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.tokenizer import read_backend
from intaglio.training.language_models.checkpoint import (
    check_output,
    held_out,
    open_network,
    read_tokenizer,
    shuffled,
    write_network,
)
from intaglio.training.language_models.options import DTYPES, check_choices, check_numbers
from intaglio.training.language_models.written_texts import write_texts

OPTION = "--data"


class Aligned(msgspec.Struct):
    """The result of `align`. Loss and agreement are measured on the teacher's output for held-out prompts."""

    checkpoint: str
    source: str
    teacher: str
    steps: int
    loss_before: float  # nats per token, the cross-entropy to the teacher's tokens
    loss: float
    agreement_before: float  # fraction of the teacher's tokens that are the small model's top-1
    agreement: float
    texts: int  # sequences to train on
    tokens: int  # generated tokens in them
    held_out_texts: int
    held_out: int  # generated tokens of held-out sequences
    seconds_writing: float  # the teacher's generation time
    seconds: float


def align(
    source: str | Path,
    output: str | Path,
    teacher: str | Path,
    data: str | Path,
    prompt_tokens: int = 64,
    max_new_tokens: int = 128,
    texts: int | None = None,
    steps: int = 300,
    batch_size: int = 8,
    learning_rate: float = 2e-4,
    dtype: Literal["float32", "float16"] | None = None,
    seed: int = 0,
    target: str = "ort-cpu",
    threads: int | None = None,
    force: bool = False,
) -> Aligned:
    """Fine-tune the small model in the folder `source` on the output of the large model, the bundle `teacher`.

    Section 4.2 of the thesis: the more often the small model predicts the large model's tokens, the more of its drafts
    are accepted. `data`: JSON lines with "prompt", or a text that is split into prompts of `prompt_tokens` tokens; the
    first `texts` prompts are used. For each, the large model generates at most `max_new_tokens` tokens, greedily, in
    batches of `batch_size`; for `target` and `threads` see `TextGenerator`. The last tenth of the sequences is
    held out. Then the small model is trained for `steps` steps of `batch_size` sequences on the generated tokens, not
    on those of the prompts. Both are causal language models, or both encoder-decoders.

    `output` becomes a folder with config.json, safetensors in `dtype` (by default that of the checkpoint) and the
    files of the tokenizer. Raises `SourceError` if the folder is not such a model with a tokenizer, `BundleError`,
    `UsageError`, `GraphError` if training diverges, `StorageError`; nothing is left at `output` then.
    """
    check_choices({"dtype": (dtype or "float32", DTYPES)})
    counts = {"prompt tokens": prompt_tokens, "max new tokens": max_new_tokens, "steps": steps}
    counts |= {"batch size": batch_size, "texts": 1 if texts is None else texts}
    check_numbers(counts, learning_rate, seed)
    source, output = Path(source), Path(output)
    check_output(source, output, force)
    started = time.monotonic()
    torch = load_library("torch")
    from intaglio.training.language_models.aligner import Aligner

    with step("reading"):
        large = Bundle.open(teacher)
        network, stored = _open_small(source, large)
        if texts is not None and texts < 2:
            raise UsageError(f"texts {texts}: expected at least 2 prompts, one to train on and one to hold out.")
        prompts = read_prompts(Path(data), OPTION, read_backend(large), prompt_tokens)[:texts]
        if len(prompts) < 2:
            raise UsageError(
                f"{OPTION} {data}: {len(prompts)} prompts, expected at least 2 different ones: one to train on, one to "
                "hold out. Give more lines, more text, or shorter prompts."
            )
        generator = TextGenerator(
            large, max_new_tokens=max_new_tokens, batch=batch_size, target=target, threads=threads
        )
    with generator:
        generator.cap_limits(_positions(network, generator.limit), network.config.vocab_size)
        began = time.monotonic()
        written = write_texts(generator, prompts)
        seconds_writing = time.monotonic() - began
    training, unseen = written[: -held_out(written)], written[-held_out(written) :]
    torch.manual_seed(seed)  # for a checkpoint with dropout
    aligner = Aligner(network, learning_rate)
    before = aligner.measure(unseen, batch_size)
    batches = shuffled(np.arange(len(training)), batch_size, np.random.default_rng(seed))
    for _ in track(range(steps), "training", total=steps):
        with interrupts.deferred():
            aligner.step([training[number] for number in next(batches)])
    after = aligner.measure(unseen, batch_size)
    with step("writing"):
        write_network(network, dtype or stored, source, output, force)
    return Aligned(
        checkpoint=str(output),
        source=str(source),
        teacher=str(teacher),
        steps=steps,
        loss_before=before.loss,
        loss=after.loss,
        agreement_before=before.agreement,
        agreement=after.agreement,
        texts=len(training),
        tokens=sum(text.written for text in training),
        held_out_texts=len(unseen),
        held_out=sum(text.written for text in unseen),
        seconds_writing=seconds_writing,
        seconds=time.monotonic() - started,
    )


def _open_small(source: Path, large: Bundle) -> tuple[Any, str]:
    """The network in `source`, checked to be usable as a draft model of `large`, and the dtype of its weights."""
    if large.manifest.encoder is None:
        decoder_of(large)  # raises an error for other bundles
    vocabulary = read_tokenizer(source).get_vocab()
    network, stored = open_network(source, encoder_decoders=True)
    what = f"source {source}"
    check_task(what, "text-to-text" if network.config.is_encoder_decoder else "generate", large)
    check_vocabulary(what, vocabulary, large)
    return network, stored


def _positions(network: Any, most: int) -> int:
    """The network's maximum sequence length; T5 has relative positions only, and so no limit."""
    return min(most, getattr(network.config, "max_position_embeddings", None) or most)
