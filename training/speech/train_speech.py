"""The verb `train_speech`: a speech recogniser, trained on a corpus of recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intaglio import extras
from intaglio.display.progress import step
from intaglio.files.atomic import CHECKPOINT, atomic_directory, check_output_directory
from intaglio.processes.threads import check_threads, usable_threads
from intaglio.samples.speech_samples import recordings as shipped_recordings
from intaglio.training.memory_reuse import memory_reused
from intaglio.training.speech.corpus import NEEDED, Corpus
from intaglio.training.speech.results import RESULTS, Evaluation, TestErrors, TrainedSpeech
from intaglio.training.speech.tokens import Tokens, characters, pieces
from intaglio.training.speech.training_options import SpeechTraining
from intaglio.training.speech.word_errors import by_group, word_errors
from intaglio.training.torch_threads import torch_threads

if TYPE_CHECKING:
    from intaglio.networks.speech.network import SpeechNetwork
    from intaglio.training.speech.batches import Example
    from intaglio.training.speech.features import FeatureReader
    from intaglio.training.speech.training_run import TrainingRun

READING = "LibriVox"  # the recordings that come with the project


def train_speech(
    corpus: str | Path,
    output: str | Path,
    options: SpeechTraining | None = None,
    threads: int | None = None,
    force: bool = False,
    report: Callable[[Evaluation], None] | None = None,
    start: str | Path | None = None,
) -> TrainedSpeech:
    """Train a speech recogniser as `options` say on the train part of `corpus`, and test it on the others.

    `corpus`: a list of recordings with their texts and parts, or a folder with one (`Corpus`). The network is tested on
    the test part, clean and mixed, on the recordings of people in the corpus, and on those that come with the project.
    `report` is called with each evaluation while it trains. With one thread and without `minutes`, the same options
    give the same weights. `start`: a checkpoint of the same network, whose weights are trained on instead of random
    ones; if its vocabulary is another one, the head is random.

    `output` becomes a folder with config.json, model.safetensors and vocabulary.json, which can be exported, and
    training.json, this result. Raises `UsageError`, `SourceError`, `GraphError` if training diverges,
    `MissingExtraError`, `StorageError`; nothing is left at `output` then.
    """
    options, path = options or SpeechTraining(), Path(output)
    check_threads(threads)
    check_output_directory(path, force, CHECKPOINT)
    for library in ("torch", "jiwer", "soundfile", "soxr"):
        extras.load(library)
    began = time.monotonic()
    with step("opening the recordings"):
        made = Corpus(corpus)
    tokens = _tokens(made, options)
    with torch_threads(threads or usable_threads()), memory_reused(), _seeded(options.seed):
        run, reader, network = _prepared(made, tokens, options, None if start is None else Path(start))
        rate, kept = run.train(report)
        errors = _test(run, reader, made, options.seed)
    result = TrainedSpeech(
        checkpoint=str(output),
        options=msgspec.to_builtins(options),
        utterances={part: len(made.part(part)) for part in NEEDED},
        hours=round(made.hours("train"), 3),
        tokens=len(tokens.vocabulary),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        steps=run.evaluations[-1].step,
        epochs=round(run.epochs, 2),
        evaluations=run.evaluations,
        kept_steps=kept,
        validation_wer=rate,
        errors=errors,
        seconds=round(time.monotonic() - began, 1),
    )
    with step("writing"):
        _write(path, network, tokens, result, force)
    return result


def _tokens(corpus: Corpus, options: SpeechTraining) -> Tokens:
    texts = [utterance.text for utterance in corpus.part("train")]
    return pieces(texts, options.pieces) if options.pieces else characters()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator for the block, and put it back afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _prepared(
    corpus: Corpus, tokens: Tokens, options: SpeechTraining, start: Path | None
) -> tuple[TrainingRun, FeatureReader, SpeechNetwork]:
    """A run with its examples, their reader and the network."""
    from intaglio.networks.speech.network import SpeechNetwork
    from intaglio.training.speech.features import CLEAN, FeatureReader, Mixed
    from intaglio.training.speech.start import load_start
    from intaglio.training.speech.training_run import TrainingRun

    config = options.config(len(tokens.vocabulary))
    reader = FeatureReader(corpus, config.front_end, tokens)
    spoken = corpus.part("train")
    variants: dict[int, list[Example]] = {}

    def examples(epoch: int) -> list[Example]:
        variant = epoch % options.variants if options.variants else epoch
        if variant not in variants:
            if not options.variants:
                variants.clear()
            mixed = Mixed((options.seed, variant), CLEAN)
            variants[variant] = reader.examples(spoken, f"mixing variant {variant + 1}", mixed)
        return variants[variant]

    network = SpeechNetwork(config, front_end=False)
    if start is not None:
        load_start(network, tokens.vocabulary, start)
    held_out = corpus.part("validation")
    validation = reader.examples(held_out, "reading the validation part"), [each.text for each in held_out]
    return TrainingRun(network, tokens, options, examples, validation), reader, network


def _test(run: TrainingRun, reader: FeatureReader, corpus: Corpus, seed: int) -> TestErrors:
    from intaglio.training.speech.features import Mixed

    spoken = corpus.part("test")
    references = [utterance.text for utterance in spoken]
    clean = run.transcripts(reader.examples(spoken, "reading the test part"))
    mixed = run.transcripts(reader.examples(spoken, "mixing the test part", Mixed((seed, 0, 1))))
    real = list(_real(reader, corpus))
    return TestErrors(
        test=word_errors(references, clean),
        mixed=word_errors(references, mixed),
        kinds=by_group([each.kind for each in spoken], references, clean),
        voices=by_group([each.voice for each in spoken], references, clean),
        recordings=by_group(
            [name for name, _, _ in real],
            [text for _, text, _ in real],
            run.transcripts([example for _, _, example in real]),
        ),
    )


def _real(reader: FeatureReader, corpus: Corpus) -> Iterator[tuple[str, str, Example]]:
    """The recordings of people: the name of their set, the reference transcript, and their features."""
    from intaglio.training.speech.batches import Example

    for each in shipped_recordings():
        yield READING, each.text, Example(reader.features(each.samples))
    for utterance in corpus.part("recordings"):
        yield utterance.kind or utterance.part, utterance.text, Example(reader.features(corpus.audio(utterance)))


def _write(path: Path, network: SpeechNetwork, tokens: Tokens, result: TrainedSpeech, force: bool) -> None:
    from intaglio.networks.speech.checkpoint import write_checkpoint

    vocabulary = {
        "tokens": tokens.vocabulary.tokens,
        "blank": tokens.vocabulary.blank,
        "word_mark": tokens.vocabulary.word_mark,
    }
    with atomic_directory(path, force, CHECKPOINT) as folder:
        write_checkpoint(folder, network.config, network.state_dict(), vocabulary)
        (folder / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
