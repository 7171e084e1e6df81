"""Write a model repository of the Triton Inference Server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import Bundle, FileRecord
from intaglio.bundle.bundle_names import named
from intaglio.deploy.triton.config import text_format
from intaglio.deploy.triton.decoders import decoder_model
from intaglio.deploy.triton.encoders import encoder_models
from intaglio.deploy.triton.model import BACKENDS, TritonModel, TritonOptions
from intaglio.errors import BundleError, UsageError
from intaglio.files.atomic import REPOSITORY, atomic_directory, check_output_directory
from intaglio.files.hashes import copy_file, sha256
from intaglio.runtime.engines.onnxruntime.cache_bits import check_caches
from intaglio.targets import DEFAULT, find_target
from intaglio.version import __version__

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
FORMAT = 1


class DeployedModel(msgspec.Struct):
    """A model of the repository."""

    name: str
    backend: str  # Triton's: python, onnxruntime, tensorrt, or ensemble
    bundle: str  # the name that clients use; its other models are parts of it


class DeployedTriton(msgspec.Struct):
    """What was written; the manifest repository.json holds the same, beside its format and author."""

    repository: str
    models: list[DeployedModel]
    files: dict[str, FileRecord]
    bytes: int


def deploy_triton(
    bundles: Sequence[str | Path],
    output: str | Path,
    *,
    backend: str | None = None,
    gpus: Sequence[str] = (),
    target: str = DEFAULT,
    threads: int | None = None,
    batch_size: int = 32,
    queue_delay: int = 2000,
    instances: int = 1,
    rows: int = 8,
    prompt_name: str | None = None,
    strategy: str | None = None,
    cache_bits: int | None = None,
    draft: str | Path | None = None,
    mounted_at: str = "/models",
    force: bool = False,
) -> DeployedTriton:
    """Write a model repository that serves `bundles` at `output`, whole or not at all.

    `bundles`: paths, or NAME=PATH; a model is named after the last folder. Encoders become models of texts on
    `backend`, one of `BACKENDS` (by default tensorrt with `gpus`, else python); decoders stream texts on the Python
    backend. `gpus`: those whose TensorRT plans are taken. `target` and `threads`: of the engines that Triton's Python
    and onnxruntime backends open. `batch_size`: maximum texts of a batch of an encoder, for which the first text waits
    up to `queue_delay` µs. `instances`: of each encoder. `rows`: texts that a decoder generates at a time.
    `prompt_name`: the prompt before texts to embed. `strategy` and `draft`: of the decoder, `cache_bits`: of
    decoders, see `TextGenerator`.
    `mounted_at`: where the server finds the repository. `force`: replace a repository.

    Raises `UsageError` for options out of range, and for what the chosen backend cannot run, `BundleError`.
    """
    output, paths = Path(output), named(bundles)
    check_output_directory(output, force, REPOSITORY)
    chosen = backend or ("tensorrt" if gpus else "python")
    opened = {name: Bundle.open(path) for name, path in paths.items()}
    _check(opened, chosen, backend, gpus, draft, strategy, prompt_name)
    find_target(target)
    options = TritonOptions(
        chosen, gpus, target, threads, batch_size, queue_delay, instances, rows, prompt_name, strategy,
        cache_bits, None if draft is None else Bundle.open(draft), mounted_at,
    )  # fmt: skip
    _check_numbers(options)
    if cache_bits is not None:
        check_caches([*opened.values(), *([options.draft] if options.draft else [])], target, cache_bits)
    made: dict[str, tuple[str, TritonModel]] = {}
    for name, bundle in opened.items():
        decoder = bundle.manifest.decoder is not None
        for model in [decoder_model(name, bundle, options)] if decoder else encoder_models(name, bundle, options):
            if model.name in made:
                raise UsageError(f"two models are named {model.name}: parts of {made[model.name][0]} and {name}.")
            made[model.name] = (name, model)
    with atomic_directory(output, force, REPOSITORY) as folder:
        files: dict[str, FileRecord] = {}
        for _, model in made.values():
            files |= _write(model, folder)
        models = [DeployedModel(model.name, model.backend, name) for name, model in made.values()]
        manifest = {"format": FORMAT, "created_by": f"intaglio {__version__}", "models": models, "files": files}
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        (folder / REPOSITORY).write_bytes(encoded + b"\n")
    return DeployedTriton(str(output), models, files, sum(each.bytes for each in files.values()))


def _check(
    opened: Mapping[str, Bundle],
    chosen: str,
    backend: str | None,
    gpus: Sequence[str],
    draft: str | Path | None,
    strategy: str | None,
    prompt_name: str | None,
) -> None:
    """Raise `UsageError` for options that fit no bundle, or not to each other."""
    decoders = [name for name, bundle in opened.items() if bundle.manifest.decoder is not None]
    if chosen not in BACKENDS:
        raise UsageError(f"backend {chosen!r}: expected one of {', '.join(BACKENDS)}.")
    if gpus and chosen != "tensorrt":
        raise UsageError(f"--gpu chooses TensorRT plans, and --backend is {chosen}. Leave one of them out.")
    if (backend or gpus or prompt_name) and len(decoders) == len(opened):
        option = "--backend" if backend else "--gpu" if gpus else "--prompt-name"
        raise UsageError(f"{option} is for encoders, and none is given. Leave it out.")
    if (draft or strategy) and len(decoders) != 1:
        option = "--draft" if draft else "--strategy"
        raise UsageError(f"{option} needs exactly one decoder, got {len(decoders)}. Deploy it alone.")
    for name, bundle in opened.items():
        if not NAME.fullmatch(name):
            raise UsageError(f"model {name!r}: Triton's names have letters, digits, _, - and dots. Write NAME=PATH.")
        if bundle.manifest.modality == "audio":  # which our own server reads
            raise BundleError(
                f"bundle {bundle.path}: its task is {bundle.manifest.task!r}, expected an encoder or a decoder. "
                f"Use: intaglio serve {bundle.path}"
            )
        if (record := bundle.manifest.modality_record) is not None:
            raise BundleError(
                f"bundle {bundle.path}: reads {record.items}, expected a model of texts. Choose another bundle."
            )


def _check_numbers(options: TritonOptions) -> None:
    for name, least in (("batch_size", 1), ("queue_delay", 0), ("instances", 1), ("rows", 1)):
        if (value := getattr(options, name)) < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected at least {least}.")
    if not options.mounted_at.startswith("/"):
        raise UsageError(f"--mounted-at {options.mounted_at}: expected an absolute path, such as /models.")


def _write(model: TritonModel, folder: Path) -> dict[str, FileRecord]:
    """Write a model's folder, and return its files by their paths in the repository."""
    found = {}
    config = text_format({"name": model.name, **model.runs_on, **model.config})
    for relative, content in {"config.pbtxt": config.encode(), **model.files}.items():
        path = folder / model.name / relative
        if isinstance(content, Path):
            copy_file(content, path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        found[f"{model.name}/{relative}"] = FileRecord(sha256(path), path.stat().st_size)
    return found
