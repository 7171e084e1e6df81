"""Read an untrusted manifest; reject one that contradicts itself, its graph or its files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.manifest import (
    DTYPES,
    FORMAT,
    LONGEST,
    MANIFEST,
    MAX_DRAFTS,
    MAX_MANIFEST_BYTES,
    SIMILARITIES,
    Audio,
    Decoder,
    EngineRecord,
    Graph,
    Manifest,
    TensorSpec,
    Transcriber,
)
from intaglio.bundle.model_file import outline
from intaglio.bundle.plan_record import CACHE_BITS, HARDWARE, HIGHEST_LEVEL
from intaglio.errors import BundleError, one_line
from intaglio.files.hashes import inside, sha256
from intaglio.files.input_files import read_text
from intaglio.files.json_decoder import json_decoder
from intaglio.storage.cache import is_fetched
from intaglio.targets import TARGETS

if TYPE_CHECKING:
    import onnx

FEATURE_DTYPES = ("float32", "float16")  # of the features of audio


class _Versioned(msgspec.Struct):
    """The part of a manifest that is read before its format is known."""

    format: Any = None


def read_manifest(path: Path) -> Manifest:
    """The manifest of the bundle at `path`. Raises `BundleError` for one that is damaged, or of a newer version."""
    file = path / MANIFEST
    if not path.is_dir():
        raise BundleError(f"bundle {path}: no such directory. Create it with: intaglio export SOURCE -o {path}")
    if not file.is_file():
        raise BundleError(f"bundle {path}: no {MANIFEST} in it. Create a bundle with: intaglio export SOURCE -o BUNDLE")
    return decode_manifest(read_text(file, "", MAX_MANIFEST_BYTES, BundleError, "Re-create it."), file)


def decode_manifest(data: str | bytes, file: str | Path) -> Manifest:
    """The manifest in `data`, the content of `file`. Raises `BundleError` as `read_manifest` does."""
    try:
        version = json_decoder(_Versioned).decode(data).format
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise BundleError(f"{file}: damaged manifest (format {version!r}). Re-create the bundle.")
        if version > FORMAT:
            raise BundleError(
                f"{file}: format {version}, this version of intaglio reads up to {FORMAT}. "
                "Update with: pip install --upgrade intaglio"
            )
        return json_decoder(Manifest).decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{file}: damaged manifest ({one_line(error, 200)}). Re-export the bundle.") from error


def verify_files(path: Path, manifest: Manifest) -> None:
    """Raise `BundleError` unless the files of the bundle at `path` are those that its manifest lists."""
    for name in (graph.file for graph in manifest.graphs):
        if name not in manifest.files:
            raise BundleError(f"{path / MANIFEST}: {name} is not listed. Re-create the bundle.")
    for engine in manifest.engines:
        if engine.path not in manifest.files:
            raise BundleError(f"{path / MANIFEST}: the engine {engine.path} is not listed among the files. Rebuild it.")
    for relative, expected in manifest.files.items():
        file = inside(path, relative, str(path / MANIFEST))
        if not file.is_file():
            link = f", a link to {file.readlink()}, which is" if file.is_symlink() else " but"
            raise BundleError(f"{file}: listed in {MANIFEST}{link} missing. Copy the whole bundle, or re-create it.")
        size = file.stat().st_size
        if size != expected.bytes:
            raise BundleError(
                f"{file}: {size} bytes, expected {expected.bytes}. Copy the whole bundle again, or re-create it."
            )
        try:
            actual = sha256(file)
        except OSError as error:
            raise BundleError(f"{file}: {error.strerror}. Make it readable, or copy the bundle again.") from error
        if actual != expected.sha256:
            fix = f"remove {path}, it is fetched again." if is_fetched(path) else "re-create the bundle."
            raise BundleError(
                f"{file}: SHA-256 {actual[:12]}…, expected {expected.sha256[:12]}…. "
                f"The file was changed after it was written; {fix}"
            )


def verify_graph(path: Path, manifest: Manifest, graph: Graph) -> None:
    """Reject a graph whose inputs or outputs differ from the manifest, or whose external data is outside the bundle."""
    file = graph.file
    model = outline(path / file)
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    for what, named, found in (("inputs", graph.inputs, inputs), ("outputs", graph.outputs, model.graph.output)):
        if [spec.name for spec in named] != [value.name for value in found]:
            raise BundleError(
                f"{path / MANIFEST}: lists the {what} {', '.join(spec.name for spec in named)}, {file} has "
                f"{', '.join(str(value.name) for value in found)}. Re-create the bundle."  # a damaged name is bytes
            )
        for spec, value in zip(named, found, strict=True):
            if problem := _contradiction(spec, value):
                raise BundleError(f"{path / MANIFEST}: {spec.name} has {problem} in {file}. Re-create the bundle.")
    _verify_data(path, manifest, file, model)


def _contradiction(spec: TensorSpec, value: onnx.ValueInfoProto) -> str:
    """How the manifest's entry of an input or output contradicts the graph; "" if they agree."""
    import onnx

    kind = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    except KeyError:  # the graph does not state it
        dtype = spec.dtype
    if {"str": "object"}.get(spec.dtype, spec.dtype) != dtype:
        return f"dtype {spec.dtype[:40]!r}, but {dtype}"
    if kind.HasField("shape"):
        axes: list[int | str] = [
            axis.dim_value if axis.HasField("dim_value") else str(axis.dim_param) for axis in kind.shape.dim
        ]
        pairs = zip(spec.shape, axes, strict=False)
        fits = all(given == stated or (stated == "" and isinstance(given, str)) for given, stated in pairs)
        if len(axes) != len(spec.shape) or not fits:
            return f"shape {list(spec.shape)}, but {axes}"
    return ""


def verify_engine(path: Path, manifest: Manifest, engine: EngineRecord) -> None:
    """Reject unknown options of an engine, and external data of an ONNX file that is outside, or not listed."""
    check_name(path, "engine's hardware_compatibility", engine.plan.hardware_compatibility, HARDWARE)
    for name, value, known in (
        ("cache_bits", engine.cache_bits, (None, *CACHE_BITS)),
        ("optimization_level", engine.plan.optimization_level, (None, *range(HIGHEST_LEVEL + 1))),
    ):
        if value not in known:
            raise BundleError(
                f"{path}: engine {engine.path}: {name} {value}, expected one of {', '.join(map(str, known[1:]))}. "
                "Re-build the engine with --force."
            )
    target = TARGETS.get(engine.target)
    if target is not None and target.runs_files:
        _verify_data(path, manifest, engine.path, outline(path / engine.path))


def _verify_data(path: Path, manifest: Manifest, file: str, model: onnx.ModelProto) -> None:
    """Reject external data of an ONNX file of the bundle that is outside of it, or not listed."""
    for location in external_data_files(model):
        relative = (PurePosixPath(file).parent / location).as_posix()
        inside(path, relative, f"{path / file}: external data")
        if relative not in manifest.files:
            raise BundleError(
                f"{path / file}: its external data {relative} is not listed in {MANIFEST}. "
                "The bundle was changed after it was written; re-create it."
            )


def verify_axes(path: Path, manifest: Manifest) -> None:
    """Reject invalid axes, an invalid truncation, and unknown dtypes."""
    specs = [spec for graph in manifest.graphs for spec in (*graph.inputs, *graph.outputs)]
    axes = [axis for graph in manifest.graphs for axis in graph.axes.values()]
    lengths = [length for spec in specs for length in spec.shape if isinstance(length, int)]
    bad_axis = any(axis.minimum < 0 or (axis.maximum or axis.minimum) < axis.minimum for axis in axes)
    if bad_axis or any(not 0 <= length <= LONGEST for length in lengths):
        raise damaged(path, "an axis has an invalid length")
    if manifest.truncation is not None and not 1 <= manifest.truncation <= LONGEST:
        raise damaged(path, f"truncation is {manifest.truncation}, expected 1 to {LONGEST}")
    for spec in specs:
        if spec.dtype not in DTYPES:
            raise damaged(path, f"{spec.name} has dtype {spec.dtype[:40]!r}, expected one of {', '.join(DTYPES)}")


def verify_embedding(path: Path, manifest: Manifest) -> None:
    """Reject a missing default prompt, an invalid prompt length, and an unknown similarity."""
    if manifest.default_prompt is not None and manifest.default_prompt not in manifest.prompts:
        raise damaged(path, "the default prompt is not among the prompts")
    if any(not 0 <= prompt.excluded_tokens <= LONGEST for prompt in manifest.prompts.values()):
        raise damaged(path, "a prompt has an invalid number of tokens")
    if manifest.similarity not in SIMILARITIES:
        named = manifest.similarity[:40]
        raise damaged(path, f"similarity {named!r}, expected one of {', '.join(SIMILARITIES)}")


def verify_decoder(path: Path, manifest: Manifest, decoder: Decoder) -> None:
    """Reject a decoder with invalid numbers, or numbers that contradict its graph."""

    def check(name: str, value: int | None, low: int, high: int) -> None:
        if value is not None:
            check_number(path, f"decoder's {name}", value, low, high)

    for name in ("layers", "heads", "kv_heads", "head_dim", "vocab_size", "max_positions", "sliding_window"):
        check(name, getattr(decoder, name), 1, LONGEST)
    check("drafts", decoder.drafts, 0, MAX_DRAFTS)
    drafts = next((each.shape[-2] for each in manifest.outputs if each.name == "draft_logits" and each.shape[1:]), 0)
    if isinstance(drafts, int):
        check("drafts", decoder.drafts, drafts, drafts)
    check("exit_layer", decoder.exit_layer, 0, decoder.layers)
    encoder = manifest.encoder
    ends: dict[str, int | None] = {
        f"eos_token_ids[{index}]": token for index, token in enumerate(decoder.eos_token_ids)
    }
    if encoder is not None:
        ends |= {"start token": encoder.decoder_start_token_id, "padding token": encoder.pad_token_id}
        ends |= {"forced_bos_token_id": encoder.forced_bos_token_id}
        ends |= {f"suppressed_tokens[{index}]": token for index, token in enumerate(encoder.suppressed_tokens)}
        ends |= {f"language {code}": token for code, token in encoder.languages.items()}
    for name, token in {"bos_token_id": decoder.bos_token_id, **ends}.items():
        check(name, token, 0, decoder.vocab_size - 1)
    check("caches", len(decoder.caches), 0, decoder.layers)
    for cache in decoder.caches:
        for name in ("heads", "key_dim", "value_dim", "window"):
            check(f"{name} of a cache", getattr(cache, name), 1, LONGEST)
    found = {spec.name: spec.shape[1::2] for spec in manifest.inputs if spec.name.startswith("past_")}
    expected = {
        f"past_{kind}_{index}": (cache.heads, width)
        for index, cache in enumerate(decoder.layer_caches)
        for kind, width in (("key", cache.key_dim), ("value", cache.value_dim))
    }
    if list(found.items()) != list(expected.items()):
        raise damaged(
            path,
            f"the decoder has {len(expected) // 2} layers with {decoder.kv_heads} heads of {decoder.head_dim} in the "
            f"cache, but the {len(found)} caches of its graph have other names or shapes",
        )
    widths = [spec.shape[-1] for spec in manifest.outputs if spec.name == "logits" and spec.shape]
    if widths and isinstance(widths[0], int):
        check("vocab_size", decoder.vocab_size, widths[0], widths[0])


def damaged(path: Path, problem: str) -> BundleError:
    """The error about a manifest that no export writes."""
    return BundleError(f"{path / MANIFEST}: {problem}. Re-export the bundle.")


def check_number(path: Path, what: str, value: int, low: int, high: int) -> None:
    """Raise `BundleError` for a number outside of `low` to `high`."""
    if not low <= value <= high:
        raise damaged(path, f"the {what} is {value}, expected {low} to {high}")


def check_name(path: Path, what: str, value: str, known: Collection[str]) -> None:
    """Raise `BundleError` for a name that is not `known`."""
    if value not in known:
        raise damaged(path, f"the {what} is {value[:40]!r}, expected one of {', '.join(known)}")


def verify_audio(path: Path, audio: Audio) -> None:
    """Reject invalid numbers of a speech recogniser."""
    limits = {
        "sample_rate": (1000, 1_000_000),
        "frame_samples": (1, 1_000_000),
        "features": (0, 1 << 16),
        "blank": (0, LONGEST),
    }
    for name, (low, high) in limits.items():
        check_number(path, f"audio's {name}", getattr(audio, name), low, high)
    check_name(path, "audio's precision", audio.precision, FEATURE_DTYPES)


def verify_transcriber(path: Path, manifest: Manifest, transcriber: Transcriber) -> None:
    """Reject a transcriber without a decoder or an encoder, and invalid numbers, tokens and names."""
    decoder, encoder = manifest.decoder, manifest.encoder
    if decoder is None or encoder is None or len(decoder.eos_token_ids) != 1:
        raise BundleError(
            f"{path / MANIFEST}: a transcriber needs an encoder, and a decoder with one end token. Re-export it."
        )
    for name, (low, high) in {"sample_rate": (1000, 1_000_000), "hop": (1, 1 << 16), "frames": (2, 1 << 20)}.items():
        check_number(path, f"transcriber's {name}", getattr(transcriber, name), low, high)
    check_number(path, "transcriber's window", transcriber.window, transcriber.hop, 1 << 16)
    last = decoder.vocab_size - 1
    tokens = [transcriber.no_timestamps + 1, transcriber.no_speech, *transcriber.begin_suppressed]
    for token in [*tokens, *transcriber.tasks.values()]:
        check_number(path, "transcriber's token", token, 0, last)
    if transcriber.max_initial_timestamp is not None:
        check_number(path, "transcriber's max_initial_timestamp", transcriber.max_initial_timestamp, 0, last)
    check_name(path, "transcriber's task", transcriber.task, transcriber.tasks or ("transcribe",))
    if transcriber.language is not None:
        check_name(path, "transcriber's language", transcriber.language, encoder.languages)
