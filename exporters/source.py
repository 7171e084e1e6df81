"""Load a checkpoint as the torch module that is traced, and that validation compares against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Source
from intaglio.errors import MissingExtraError, SourceError, one_line
from intaglio.exporters.checkpoints.checkpoint import CONFIG, Checkpoint
from intaglio.exporters.checkpoints.safetensors_file import MappedTensor
from intaglio.exporters.decoders.family import DecoderFamily
from intaglio.exporters.encoders.description import EncoderDescription, describe_encoder
from intaglio.exporters.encoders.sentence_transformers import read_head
from intaglio.exporters.families import find_decoder, find_speech
from intaglio.exporters.source_folders import folder_of
from intaglio.extras import load
from intaglio.networks.early_exit import EVERY
from intaglio.networks.speech.configuration import read_config

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from intaglio.exporters.decoders.module import DecoderModule
    from intaglio.exporters.encoders.modules import Encoder
    from intaglio.networks.speech.network import SpeechNetwork


def load_module(
    source: Source, download: bool = False, takes_audio: bool = True
) -> Encoder | DecoderModule | SpeechNetwork:
    """Load the checkpoint that a bundle was exported from as a float32 torch module in eval mode.

    `forward` takes the manifest's inputs in order and returns a tuple in the order of its outputs. `download`: whether
    a checkpoint of the hub may be downloaded; a manifest may name any. `takes_audio`: whether a speech recogniser
    begins with its front end. Raises `SourceError` if the checkpoint is missing, or its weights or configuration have
    changed since the export, and `MissingExtraError` without torch or transformers.
    """
    if source.kind not in ("local", "hub"):
        raise SourceError(
            f"source {source.location}: a graph written by another tool has no PyTorch model to compare with. "
            "Compare with another bundle: --against BUNDLE, or with --against reference."
        )
    try:
        checkpoint = _checkpoint(source, download)
    except SourceError as error:
        raise SourceError(f"{error} (The bundle was exported from it. --against BUNDLE does not need it.)") from error
    for name, found in checkpoint.source().sha256.items():
        if found != (recorded := source.sha256.get(name, "none")):
            raise SourceError(
                f"{checkpoint.root / name}: SHA-256 {found[:12]}…, the bundle was exported from {recorded[:12]}…. "
                "Re-export it, or compare with another bundle: --against BUNDLE."
            )
    _check_pytorch()
    if find_speech(checkpoint.config):
        return build_speech(checkpoint, takes_audio)
    if (decoder := find_decoder(checkpoint.config)) and read_head(checkpoint.root) is None:
        return build_decoder(checkpoint, decoder)
    return build_module(checkpoint, describe_encoder(checkpoint), checkpoint.tensors())


def _checkpoint(source: Source, download: bool) -> Checkpoint:
    """Open the checkpoint. A manifest has the name of a folder, so ask first where this machine has that checkpoint."""
    if source.kind == "hub":
        return Checkpoint.open(source.location, source.revision, download)
    known = None if Path(source.location).is_absolute() else folder_of(source)
    folder = known or Path(source.location)
    if not folder.is_dir():
        raise SourceError(
            f"source {source.location}: the folder of this checkpoint is not known on this machine. Give it with "
            "--against FOLDER."
        )
    return Checkpoint.open(str(folder))


def _check_pytorch() -> None:
    """Raise `MissingExtraError` without torch or transformers, with the alternatives."""
    try:
        load("torch")
        load("transformers")
    except MissingExtraError as error:
        raise MissingExtraError(
            f"{error}, or compare without PyTorch: --against reference, or --against BUNDLE."
        ) from error


def build_module(checkpoint: Checkpoint, described: EncoderDescription, weights: Mapping[str, MappedTensor]) -> Encoder:
    """The checkpoint as a float32 `Encoder` in eval mode; weights that are float32 stay mapped, not read."""
    load("torch")
    from intaglio.exporters.encoders.modules import Encoder

    family = described.family
    extra = {"add_pooling_layer": False} if described.is_base and family.has_pooler else {}
    model = build_model(checkpoint, weights, described.architecture, family.blocks, **extra)
    first_output = "last_hidden_state" if described.is_base else "logits"
    encoder = Encoder(model, family.inputs, first_output, described.head, family.causal)
    return encoder.eval().requires_grad_(False)


def build_decoder(checkpoint: Checkpoint, family: DecoderFamily, streamed: bool = False) -> DecoderModule:
    """The checkpoint as a float32 `DecoderModule` in eval mode, with its drafts or early exit if any.

    `streamed`: as in `build_model`.
    """
    load("torch")
    from intaglio.exporters.decoders.module import DecoderModule, DraftedModule, EarlyExitModule, SaturationModule

    model = build_model(checkpoint, checkpoint.tensors(), family.architecture, family.blocks, streamed)
    drafts = checkpoint.drafts(model.config.num_hidden_layers)
    matrices = {name: mapped.tensor for name, mapped in checkpoint.draft_tensors().items()}
    early_exit = checkpoint.early_exit(model.config.num_hidden_layers)
    if drafts:
        module: DecoderModule = DraftedModule(model, drafts, matrices)
    elif early_exit is None:
        module = DecoderModule(model)
    elif early_exit.layer == EVERY:
        module = SaturationModule(model, model.get_submodule(family.blocks))
    else:
        module = EarlyExitModule(model, early_exit.layer)
    return module.eval().requires_grad_(False)


def build_speech(checkpoint: Checkpoint, takes_audio: bool) -> SpeechNetwork:
    """The checkpoint as a float32 `SpeechNetwork` in eval mode, with its front end if it `takes_audio`."""
    load("torch")
    from intaglio.networks.speech.weights import load_network

    config = read_config(checkpoint.config, str(checkpoint.folder / CONFIG))
    weights = {name: mapped.tensor for name, mapped in checkpoint.tensors().items()}
    return load_network(config, weights, checkpoint.folder, takes_audio)


def build_model(
    checkpoint: Checkpoint,
    weights: Mapping[str, MappedTensor],
    architecture: str,
    blocks: str,
    streamed: bool = False,
    **extra: bool,
) -> Any:
    """Load the checkpoint as a float32 `transformers` model, with the options `extra`; float32 weights stay mapped.

    `blocks` is the path of the list of Transformer blocks; config.json must count all of them. `streamed`: large
    weights are read from their files each time that they are used, so that they are never all in memory.
    """
    if streamed:
        from intaglio.exporters.streamed_weights import StreamedWeights

        stream = StreamedWeights(weights)
        model = _load_complete(checkpoint, stream.state_dict, architecture, blocks, extra)
        if stream.attach(model):
            return model
    tensors = {name: mapped.tensor for name, mapped in weights.items()}
    return _load_complete(checkpoint, tensors, architecture, blocks, extra)


def _load_complete(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], architecture: str, blocks: str, extra: Mapping[str, bool]
) -> Any:
    with source_errors(checkpoint, architecture, Exception):  # the library raises all kinds of exceptions
        model, report = load_state(checkpoint.folder, architecture, tensors, load("torch").float32, **extra)
    _check_complete(checkpoint, architecture, blocks, report)
    return model


def load_state(
    folder: Path, architecture: str, tensors: Mapping[str, Tensor], dtype: dtype, **extra: bool
) -> tuple[Any, dict[str, Any]]:
    """The `transformers` model of the config.json in `folder` with these weights, and the library's report of keys."""
    transformers = load("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(str(folder), attn_implementation="eager", trust_remote_code=False)
    model, report = getattr(transformers, architecture).from_pretrained(
        None,
        config=config,
        state_dict=dict(tensors),
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported by the caller, in one line
        **extra,
    )
    return model, report


def check_finite(checkpoint: Checkpoint, outputs: Iterable[npt.NDArray[np.generic]]) -> None:
    """Raise `SourceError` if one of the source model's `outputs` on real input has a NaN or an infinity."""
    if not all(np.isfinite(array).all() for array in outputs):
        raise SourceError(
            f"{checkpoint.folder}: the source model itself returns NaN or infinity on plain English sentences. "
            "Its weights are damaged: download or copy the checkpoint again."
        )


@contextmanager
def source_errors(checkpoint: Checkpoint, architecture: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert what torch and transformers raise for an inconsistent checkpoint into a `SourceError`."""
    try:
        yield
    except SourceError:
        raise
    except kinds as error:
        cause = error.__cause__ or error
        reason = one_line(cause, 300)
        if isinstance(error, MemoryError) or "not enough memory" in reason:
            raise MemoryError from error
        raise SourceError(
            f"{checkpoint.folder}: config.json and the weights do not form a {architecture}: {type(cause).__name__}: "
            f"{reason}. Compare config.json with the original, or download the checkpoint again."
        ) from error


def _check_complete(checkpoint: Checkpoint, architecture: str, blocks: str, report: dict[str, Any]) -> None:
    """Reject a checkpoint with missing weights, which the library would fill randomly, or with too many blocks."""
    missing = sorted(map(str, report.get("missing_keys") or []))
    mismatched = sorted(str(entry[0]) for entry in report.get("mismatched_keys") or [])  # name, shape, shape
    unused = sorted(str(key) for key in report.get("unexpected_keys") or [] if f"{blocks}." in str(key))
    if missing or mismatched:
        named = ", ".join((missing + mismatched)[:3])
        raise SourceError(
            f"{checkpoint.folder}: {len(missing)} weights of {architecture} are missing and {len(mismatched)} do not "
            f"have the shape in config.json ({named}…). Give the checkpoint of a trained {architecture}."
        )
    if unused:
        raise SourceError(
            f"{checkpoint.folder}: {len(unused)} weights belong to layers beyond those in config.json "
            f"({unused[0]}…). Fix its number of layers."
        )


def reference_outputs(module: Encoder, feeds: dict[str, Any]) -> dict[str, Any]:
    """The module's outputs for one batch, as NumPy arrays by name."""
    torch: Any = load("torch")
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(feeds[name]) for name in module.input_names))
    return {name: output.numpy() for name, output in zip(module.output_names, outputs, strict=True)}
