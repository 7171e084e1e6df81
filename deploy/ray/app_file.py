"""Write the file of a Ray Serve application."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.bundle_names import named
from intaglio.deploy.ray.settings import (
    FRONT_DOOR,
    MANIFEST,
    PACKAGE,
    RayAdapter,
    RayBundle,
    RayModel,
    RaySettings,
    adapter_hashes,
)
from intaglio.errors import BundleError, UsageError, one_line
from intaglio.extras import load
from intaglio.files.atomic import atomic_file, check_output_file
from intaglio.files.hashes import sha256
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.engines.onnxruntime.cache_bits import check_caches
from intaglio.runtime.generation.requests.draft_model import check_draft
from intaglio.runtime.generation.requests.strategy_choice import method_of, sampling_of
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.tasks import EMBEDDING_TASKS
from intaglio.serve.options import ServerOptions, read_keys
from intaglio.storage.cache import refuse_fetched
from intaglio.targets import DEFAULT, find_target

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
TEXTS_AT_A_TIME = 64  # requests that a replica of an encoder has at a time, to form batches of
UNLIMITED = 1 << 20  # requests of the front door, which has limits of its own
AFTER_GRACE = 5.0  # seconds between the last response of a replica and its end
NETWORK = ("host", "port", "ssl_certfile", "ssl_keyfile")
NOT_OURS = {"api_keys", "send_timeout", "max_audio_seconds", "grace"}  # a file of its own; Ray's; no recordings; Ray's


class RayDeployment(msgspec.Struct):
    """A model of the application."""

    name: str
    bundle: str  # where the nodes find it
    task: str
    min_replicas: int
    max_replicas: int


class DeployedRay(msgspec.Struct):
    """What was written."""

    file: str
    models: list[RayDeployment]


def deploy_ray(
    bundles: Sequence[str | Path],
    output: str | Path,
    *,
    min_replicas: int = 1,
    max_replicas: int | None = None,
    threads: int = 1,
    target: str = DEFAULT,
    prompt_name: str | None = None,
    strategy: str | None = None,
    draft: str | Path | None = None,
    adapter: Sequence[str | Path] = (),
    cache_bits: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    options: ServerOptions | None = None,
    mounted_at: str | None = None,
    force: bool = False,
) -> DeployedRay:
    """Write a configuration file of Ray Serve that serves `bundles` at `output`, whole or not at all.

    `bundles`: paths, or NAME=PATH; a model is named after the last folder. Each becomes a deployment of `min_replicas`
    to `max_replicas` (None: `min_replicas`), scaled by the number of its requests; a replica reserves `threads`
    processors, and with a `target` for GPUs one of these. `prompt_name`: the prompt before texts to embed. `strategy`
    and `draft`: of the decoder, see `TextGenerator`; the draft model is part of each replica. `adapter`: folders of
    LoRA adapters of the decoder, DIR or NAME=DIR, each one more model, MODEL:NAME. `cache_bits`: of the decoders, see
    there. `host` to `tls_key`: of
    the HTTP proxies; `api_key_file` is read by the front door. `options`: limits; its keys are not used.
    `mounted_at`: the folder in which the nodes find the bundles, the draft and adapters, by the names of their folders;
    None: at the paths given. `force`: replace a file.

    Raises `UsageError` for options out of range, `BundleError` for bundles that are no models of texts, `SourceError`
    for folders that are no adapters, and `MissingExtraError` without Ray.
    """
    output, options = Path(output), options or ServerOptions()
    check_output_file(output, force, "--output")
    schema = load("ray.serve.schema")
    opened = {name: Bundle.open(path) for name, path in named(bundles).items()}
    drafting = None if draft is None else Bundle.open(draft)
    replicas = (min_replicas, min_replicas if max_replicas is None else max_replicas)
    _check(opened, replicas, mounted_at, (tls_cert, tls_key))
    for option, value in (("threads", threads), ("port", port)):
        if value < 1:
            raise UsageError(f"--{option} {value}: expected at least 1.")
    _check_generation(opened, drafting, strategy)
    adapters = _adapters(opened, adapter, mounted_at)
    if cache_bits is not None:
        check_caches([*opened.values(), *([drafting] if drafting else [])], target, cache_bits)
    _check_prompt(opened, prompt_name)
    gpus = {"num_gpus": 1} if find_target(target).needs_gpu else {}
    if api_key_file is not None:
        read_keys(Path(api_key_file))
    models = {
        name: RayModel(
            _located(bundle, mounted_at),
            None if drafting is None or bundle.manifest.decoder is None else _located(drafting, mounted_at),
            adapters if bundle.manifest.decoder is not None else {},
            strategy if bundle.manifest.decoder is not None else None,
            cache_bits if bundle.manifest.decoder is not None else None,
            prompt_name if bundle.manifest.task in EMBEDDING_TASKS else None,
        )
        for name, bundle in opened.items()
    }
    network = (host, port, _absolute(tls_cert), _absolute(tls_key))
    application = {
        "name": "intaglio",
        "route_prefix": "/",
        "import_path": f"{PACKAGE}.application:build",
        "args": msgspec.to_builtins(
            RaySettings(models, target, threads, _absolute(api_key_file), _limits(options)), enc_hook=str
        ),
        "logging_config": {"enable_access_log": False},  # the front door has its own
        "deployments": [
            {
                "name": FRONT_DOOR,
                "num_replicas": 1,
                "max_ongoing_requests": UNLIMITED,
                "graceful_shutdown_timeout_s": options.grace + AFTER_GRACE,
                "ray_actor_options": {"num_cpus": 0},  # it computes little
            },
            *(
                _deployment(name, bundle, replicas, options, {"num_cpus": threads, **gpus})
                for name, bundle in opened.items()
            ),
        ],
    }
    content = {
        "http_options": {name: value for name, value in zip(NETWORK, network, strict=True) if value is not None},
        "applications": [application],
    }
    with atomic_file(output) as temporary:
        temporary.write_text(yaml.safe_dump(content, sort_keys=False, width=120), encoding="utf-8")
        _validate(schema, temporary)
    described = [
        RayDeployment(name, models[name].bundle.path, bundle.manifest.task, *replicas)
        for name, bundle in opened.items()
    ]
    return DeployedRay(str(output), described)


def _check(
    opened: Mapping[str, Bundle],
    replicas: tuple[int, int],
    mounted_at: str | None,
    tls: tuple[str | Path | None, str | Path | None],
) -> None:
    """Raise `UsageError` for options out of range, `BundleError` for models of something else than texts."""
    least, most = replicas
    if not 1 <= least <= most:
        raise UsageError(f"--min-replicas {least}, --max-replicas {most}: expected 1 <= minimum <= maximum.")
    if mounted_at is not None and not mounted_at.startswith("/"):
        raise UsageError(f"--mounted-at {mounted_at}: expected an absolute path, such as /models.")
    if (tls[0] is None) != (tls[1] is None):
        raise UsageError("--tls-cert and --tls-key belong together, got one of them. Give both.")
    for name, bundle in opened.items():
        if not NAME.fullmatch(name) or name == FRONT_DOOR:
            raise UsageError(
                f"model {name!r}: names here have letters, digits, _, - and dots, and are not {FRONT_DOOR}. "
                "Write NAME=PATH."
            )
        if bundle.manifest.modality != "text":
            raise BundleError(
                f"bundle {bundle.path}: its task is {bundle.manifest.task!r}, expected a model of texts. "
                f"Use: intaglio serve {bundle.path}"
            )


def _check_generation(opened: Mapping[str, Bundle], draft: Bundle | None, strategy: str | None) -> None:
    """Raise `UsageError` for a strategy or a draft model that does not fit."""
    if draft is None and strategy is None:
        return
    decoder = _only_decoder(opened, "--strategy" if draft is None else "--draft")
    drafting = None if draft is None else "--draft"
    chosen, _ = sampling_of(strategy, "auto" if drafting else "greedy", {}, {})
    method_of(chosen, {}, drafting)
    if draft is not None:
        check_draft(draft, decoder)


def _only_decoder(opened: Mapping[str, Bundle], option: str) -> Bundle:
    """The decoder that `option` is for. Raises `UsageError` unless there is exactly one."""
    decoders = [bundle for bundle in opened.values() if bundle.manifest.decoder is not None]
    if len(decoders) != 1:
        raise UsageError(f"{option} needs exactly one decoder, got {len(decoders)}. Deploy it alone.")
    return decoders[0]


def _adapters(
    opened: Mapping[str, Bundle], given: Sequence[str | Path], mounted_at: str | None
) -> dict[str, RayAdapter]:
    """The adapters by name. Raises `UsageError` unless there is exactly one decoder, and as reading them does."""
    if not given:
        return {}
    decoder, folders = _only_decoder(opened, "--adapter"), named(given, "adapter")
    Adapters.read(folders, decoder.manifest.source)
    return {name: RayAdapter(str(_placed(path, mounted_at)), adapter_hashes(path)) for name, path in folders.items()}


def _check_prompt(opened: Mapping[str, Bundle], prompt_name: str | None) -> None:
    if prompt_name is None:
        return
    embedding = [bundle.manifest for bundle in opened.values() if bundle.manifest.task in EMBEDDING_TASKS]
    if not embedding:
        raise UsageError("--prompt-name is for models that embed texts, and none is given. Leave it out.")
    for manifest in embedding:
        find_prompt(manifest, prompt_name)


def _deployment(
    name: str, bundle: Bundle, replicas: tuple[int, int], options: ServerOptions, reserved: Mapping[str, int]
) -> dict[str, Any]:
    """The options of a model's deployment. Twice its batch is sent to a replica; the rest waits for any of them."""
    decoder = bundle.manifest.decoder is not None
    batch = options.rows if decoder else TEXTS_AT_A_TIME // 2
    least, most = replicas
    scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": batch}
    router = {"request_router_class": f"{PACKAGE}.prefix_router.PrefixRouter"}
    return {
        "name": name,
        **({"num_replicas": least} if least == most else {"autoscaling_config": scaling}),
        "max_ongoing_requests": 2 * batch,
        "max_queued_requests": options.max_waiting,
        "graceful_shutdown_timeout_s": options.grace + AFTER_GRACE,
        "ray_actor_options": dict(reserved),
        **({"request_router_config": {**router, "request_router_kwargs": {"rows": options.rows}}} if decoder else {}),
    }


def _limits(options: ServerOptions) -> dict[str, Any]:
    """All limits, so that the file shows them."""
    names = [name for name in ServerOptions.__dataclass_fields__ if name not in NOT_OURS]
    values = {name: getattr(options, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _located(bundle: Bundle, mounted_at: str | None) -> RayBundle:
    if mounted_at is None:
        refuse_fetched(bundle.path, "the nodes need it at one path. Put it there, and add --mounted-at DIR.")
    return RayBundle(str(_placed(bundle.path, mounted_at)), sha256(bundle.path / MANIFEST))


def _placed(path: Path, mounted_at: str | None) -> Path:
    """Where the nodes find a folder."""
    return path.resolve() if mounted_at is None else Path(mounted_at, path.resolve().name)


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _validate(schema: Any, path: Path) -> None:
    """Raise `UsageError` if Ray does not accept the file."""
    try:
        schema.ServeDeploySchema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise UsageError(f"Ray Serve does not accept these options: {one_line(error, 300)}. Change them.") from error
