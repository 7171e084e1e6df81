"""Write a model repository of the Triton Inference Server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import Bundle, FileRecord
from intaglio.bundle.bundle_names import named
from intaglio.deploy.triton.config import read_text_format, text_format
from intaglio.deploy.triton.decoders import decoder_model
from intaglio.deploy.triton.encoders import encoder_models
from intaglio.deploy.triton.manifest import DeployedModel, Manifest
from intaglio.deploy.triton.model import BACKENDS, TritonModel, TritonOptions, write_files
from intaglio.deploy.triton.versions import CONFIG, add_version, loaded_versions, policy_message
from intaglio.errors import BundleError, UsageError
from intaglio.files.atomic import REPOSITORY, atomic_directory, check_output_directory
from intaglio.runtime.engines.onnxruntime.cache_bits import check_caches
from intaglio.targets import DEFAULT, find_target

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class DeployedTriton(msgspec.Struct):
    """The repository that was written, or got a version; its manifest repository.json holds the same."""

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
    model_version: int | None = None,
    version_policy: str | None = None,
    force: bool = False,
) -> DeployedTriton:
    """Write a model repository that serves `bundles` at `output`, or a further version of its models.

    It is written whole or not at all.

    `bundles`: paths, or NAME=PATH; a model is named after the last folder. Encoders become models of texts on
    `backend`, one of `BACKENDS` (by default tensorrt with `gpus`, else python); decoders stream texts on the Python
    backend. `gpus`: those whose TensorRT plans are taken. `target` and `threads`: of the engines that Triton's Python
    and onnxruntime backends open. `batch_size`: maximum texts of a batch of an encoder, for which the first text waits
    up to `queue_delay` µs. `instances`: of each encoder. `rows`: texts that a decoder generates at a time.
    `prompt_name`: the prompt before texts to embed. `strategy` and `draft`: of the decoder, `cache_bits`: of
    decoders, see `TextGenerator`.
    `mounted_at`: where the server finds the repository. `model_version`: the number of the models' version, by default
    1; in a repository that exists, it is added to the others, of models on the Python backend. `version_policy`: the
    versions that the server loads: all, latest:N or specific:N,N; None: the policy that the models have, for new ones
    the latest version. `force`: replace a repository.

    Raises `UsageError` for options out of range, and for what the chosen backend cannot run, `BundleError`.
    """
    output, paths = Path(output), named(bundles)
    adds = model_version is not None and (output / REPOSITORY).is_file()
    if not adds:
        check_output_directory(output, force, REPOSITORY)
    elif force:
        raise UsageError(f"output {output}: --force replaces a repository, --model-version adds to it. Leave one out.")
    chosen = backend or ("tensorrt" if gpus else "python")
    opened = {name: Bundle.open(path) for name, path in paths.items()}
    _check(opened, chosen, backend, gpus, draft, strategy, prompt_name)
    version = 1 if model_version is None else model_version
    _check_versions(opened, chosen, model_version, version_policy)
    find_target(target)
    options = TritonOptions(
        chosen, gpus, target, threads, batch_size, queue_delay, instances, rows, prompt_name, strategy,
        cache_bits, None if draft is None else Bundle.open(draft), mounted_at, version,
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
    if adds:
        manifest = add_version(output, [model for _, model in made.values()], version, version_policy)
    else:
        manifest = _write(output, force, made.values(), version, version_policy)
    size = sum(each.bytes for each in manifest.files.values())
    return DeployedTriton(str(output), manifest.models, manifest.files, size)


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


def _check_versions(
    opened: Mapping[str, Bundle], chosen: str, model_version: int | None, version_policy: str | None
) -> None:
    """Raise `UsageError` for a version that is no number from 1 on, and for versions of ensembles."""
    if model_version is not None and model_version < 1:
        raise UsageError(f"--model-version {model_version}: expected at least 1.")
    encoders = any(bundle.manifest.decoder is None for bundle in opened.values())
    if (model_version or version_policy) and chosen != "python" and encoders:
        given = "--version-policy" if model_version is None else "--model-version"
        raise UsageError(
            f"{given} is for models on --backend python: an ensemble of --backend {chosen} has one configuration for "
            "all versions, and would run the latest version of its parts in each. Deploy it under another name."
        )


def _check_numbers(options: TritonOptions) -> None:
    for name, least in (("batch_size", 1), ("queue_delay", 0), ("instances", 1), ("rows", 1)):
        if (value := getattr(options, name)) < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected at least {least}.")
    if not options.mounted_at.startswith("/"):
        raise UsageError(f"--mounted-at {options.mounted_at}: expected an absolute path, such as /models.")


def _write(
    output: Path, force: bool, made: Iterable[tuple[str, TritonModel]], version: int, policy: str | None
) -> Manifest:
    """Write a repository with one version of each model."""
    field = {} if policy is None else {"version_policy": policy_message(policy)}
    manifest = Manifest([], {})
    with atomic_directory(output, force, REPOSITORY) as folder:
        for name, model in made:
            config = text_format({**model.whole_config, **field})
            loaded = loaded_versions(read_text_format(config), [version])
            manifest.models.append(DeployedModel(model.name, model.backend, name, [version], loaded))
            manifest.files |= write_files({CONFIG: config.encode(), **model.files}, folder, model.name)
            manifest.files |= write_files(model.version_files, folder, f"{model.name}/{version}")
        (folder / REPOSITORY).write_bytes(manifest.encoded())
    return manifest
