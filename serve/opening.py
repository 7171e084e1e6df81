"""Open the bundles of a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.bundle_names import named
from intaglio.display.progress import step
from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.generation.worker import DecoderWorker
from intaglio.runtime.speech.recognizer import SpeechOptions, speech_options
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.tasks import EMBEDDING_TASKS
from intaglio.serve.endpoints.embeddings import MAX_INPUTS
from intaglio.serve.models.model import DecoderModel, EncoderModel, Model, Models, SpeechModel
from intaglio.serve.options import ServerOptions
from intaglio.serve.workers.encoder_worker import EncoderWorker
from intaglio.serve.workers.speech_worker import SpeechWorker

# Default maximum source tokens of an encoder-decoder: attention takes 4 bytes x heads x tokens², 0.8 GB for T5-base.
SOURCE_TOKENS = 4096
WAITING_TEXTS = 4 * MAX_INPUTS  # at least, of an encoder, which counts texts and not requests

log = logging.getLogger("intaglio.serve")


def open_models(
    bundles: Sequence[str | Path],
    options: ServerOptions,
    *,
    adapter: Sequence[str | Path] = (),
    strategy: str | None = None,
    draft: str | Path | None = None,
    early_exit: bool = False,
    beam: int | None = None,
    language_model: str | Path | None = None,
    language_model_weight: float | None = None,
    word_bonus: float | None = None,
    prompt_name: str | None = None,
    target: str = "ort-cpu",
    threads: int | None = None,
    cache_bits: int | None = None,
    **strategy_options: float | None,
) -> Models:
    """Open every bundle; `adapter`, `strategy`, `draft`, their options and `cache_bits`: see `TextGenerator`, for the
    decoders. `beam` to `word_bonus`: see `run`, for the speech recognisers. `prompt_name`: the prompt put before texts
    to embed if a request names none; None: each model's default.

    Raises `UsageError` where a draft model is given for several decoders, for options that apply to no model, and as
    `TextGenerator` does.
    """
    speech = speech_options(beam, language_model, language_model_weight, word_bonus, options.max_audio_seconds)
    opened = {name: Bundle.open(path) for name, path in named(bundles).items()}
    decoders = [name for name, bundle in opened.items() if bundle.manifest.generates]
    chosen = {"adapter": adapter, "strategy": strategy, "draft": draft, "early_exit": early_exit, **strategy_options}
    if cache_bits is not None and not decoders:
        raise UsageError("--cache-bits is for decoders, and none is given. Leave it out.")
    if draft is not None and len(decoders) != 1:
        raise UsageError(f"--draft needs exactly one decoder, got {len(decoders)}. Serve it alone.")
    if adapter and len(decoders) != 1:
        raise UsageError(f"--adapter needs exactly one decoder, got {len(decoders)}. Serve it alone.")
    if not decoders and any(value not in (None, False, ()) for value in chosen.values()):
        raise UsageError("a strategy is given, but no decoder. Leave it out.")
    chosen["cache_bits"] = cache_bits
    manifests = [bundle.manifest for bundle in opened.values()]
    if beam is not None and all(manifest.modality != "audio" for manifest in manifests):
        raise UsageError("--beam is for speech recognisers, and none is given. Leave it out.")
    if language_model is not None and all(manifest.audio is None for manifest in manifests):
        raise UsageError("--language-model is for recognisers with a CTC head, and none is given. Leave it out.")
    if prompt_name is not None:
        _check_prompt(opened, prompt_name)
    models: dict[str, Model] = {}
    with ExitStack() as stack:
        for name, bundle in opened.items():
            size = sum(path.stat().st_size for path in bundle.path.rglob("*") if path.is_file())
            log.info("opening %s: %s, %.1f MB", name, bundle.manifest.task, size / 1e6)
            began = time.perf_counter()
            with step(f"opening {name}"):
                if name in decoders:
                    models[name] = _open_decoder(name, bundle, options, target, threads, chosen)
                elif bundle.manifest.modality == "audio":
                    models[name] = _open_speech(name, bundle, options, speech, target, threads)
                else:
                    models[name] = _open_encoder(name, bundle, options, target, threads, prompt_name)
            stack.callback(models[name].worker.close)
            longest = models[name].max_tokens
            takes = [] if longest is None else [f"at most {longest} tokens"]
            takes += [] if isinstance(models[name], EncoderModel) else [f"{options.rows} rows"]
            log.info("opened %s in %.1f s: %s", name, time.perf_counter() - began, ", ".join(takes) or "any length")
        found = Models(models)
        if taken := sorted(found.adapted.keys() & models.keys()):
            raise UsageError(f"two models are named {taken[0]!r}: a bundle and an adapter. Write NAME=PATH for one.")
        stack.pop_all()
    return found


def _open_decoder(
    name: str,
    bundle: Bundle,
    options: ServerOptions,
    target: str,
    threads: int | None,
    chosen: Mapping[str, object],
) -> DecoderModel:
    scheduling = SchedulerOptions(max_waiting=options.max_waiting, max_waiting_tokens=options.max_waiting_tokens)
    generator = TextGenerator(
        bundle,
        batch=options.rows,
        target=target,
        threads=threads,
        scheduling=scheduling,
        **chosen,  # type: ignore[arg-type]
    )
    if (reader := generator.scheduler.prompts.reader) is not None:
        reader.open()
    if options.max_sequence_tokens is not None:
        generator.cap_limits(options.max_sequence_tokens, generator.vocabulary)
    generator.cap_source_limit(options.max_sequence_tokens or SOURCE_TOKENS)
    return DecoderModel(name, bundle, DecoderWorker(generator), max_image_pixels=options.max_image_pixels)


def _check_prompt(opened: Mapping[str, Bundle], prompt_name: str) -> None:
    """Raise `UsageError` unless there are models that embed, and all of them have this prompt."""
    embedding = [bundle.manifest for bundle in opened.values() if bundle.manifest.task in EMBEDDING_TASKS]
    if not embedding:
        raise UsageError("--prompt-name is for models that embed texts, and none is given. Leave it out.")
    for manifest in embedding:
        find_prompt(manifest, prompt_name)


def _open_encoder(
    name: str, bundle: Bundle, options: ServerOptions, target: str, threads: int | None, prompt_name: str | None
) -> EncoderModel:
    worker = EncoderWorker(
        bundle,
        target,
        threads,
        max_waiting=max(options.max_waiting, WAITING_TEXTS),
        max_waiting_tokens=options.max_waiting_tokens,
        prompt_name=prompt_name if bundle.manifest.task in EMBEDDING_TASKS else None,
    )
    return EncoderModel(name, bundle, worker)


def _open_speech(
    name: str, bundle: Bundle, options: ServerOptions, speech: SpeechOptions, target: str, threads: int | None
) -> SpeechModel:
    if bundle.manifest.transcriber is not None and speech.language_model is not None:  # both are for others
        speech = SpeechOptions(max_seconds=speech.max_seconds)
    worker = SpeechWorker(bundle, target, threads, options.rows, options.max_waiting, speech)
    return SpeechModel(name, bundle, worker)
