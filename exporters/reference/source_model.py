"""Load a checkpoint as a model of `transformers`, and report what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.quantized.formats import SECTION as QUANTIZATION
from intaglio.exporters.checkpoints.quantized.formats import StoredTensor
from intaglio.extras import load

if TYPE_CHECKING:
    from torch import Tensor, dtype


IN_TRAINING = "masked_spec_embed"  # the end of a weight's name that only training reads; some checkpoints lack it


def build_model(
    checkpoint: Checkpoint,
    weights: Mapping[str, StoredTensor],
    architecture: str,
    blocks: str | Callable[[Any], str],
    streamed: bool = False,
    **extra: bool,
) -> Any:
    """Load the checkpoint as a float32 `transformers` model, with the options `extra`; float32 weights stay mapped.

    `blocks` is the path of the list of Transformer blocks, or finds it in the model; config.json must count all of
    them. `streamed`: large weights are read from their files each time that they are used, so that they are never all
    in memory.
    """
    if streamed:
        from intaglio.exporters.reference.streamed_weights import StreamedWeights

        stream = StreamedWeights(weights)
        model = _load_complete(checkpoint, stream.state_dict, architecture, blocks, extra)
        if stream.attach(model):
            return model
    tensors = {name: mapped.tensor for name, mapped in weights.items()}
    return _load_complete(checkpoint, tensors, architecture, blocks, extra)


def deferred_model(checkpoint: Checkpoint, architecture: str, blocks: Callable[[Any], str]) -> Any:
    """The checkpoint as a `transformers` model in eval mode, whose parameters are `DeferredTensor`s.

    `blocks` returns the path of its list of Transformer blocks.
    """
    from intaglio.exporters.checkpoints.deferred import DeferredTensor

    tensors = {name: DeferredTensor.of(name, mapped) for name, mapped in checkpoint.parameters().items()}
    _check_experts(checkpoint, tensors)
    model = _load_complete(checkpoint, tensors, architecture, blocks, {})
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if isinstance(buffer, DeferredTensor):
                module._buffers[name] = buffer.compute()
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not isinstance(parameter.data, DeferredTensor):
                del module._parameters[name]  # a table that the library computes, such as sines of positions
                module.register_buffer(name, parameter.data, persistent=False)
    return model.eval().requires_grad_(False)


def _check_experts(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
    """Reject a checkpoint with experts missing or of another shape, which the library joins without saying which."""
    found: dict[str, dict[str, Tensor]] = {}  # "model.layers.0.mlp.experts.*.up_proj.weight" -> its experts by number
    for name, tensor in tensors.items():
        if expert := re.search(r"(?<=experts\.)\d+(?=\.)", name):
            found.setdefault(f"{name[: expert.start()]}*{name[expert.end() :]}", {})[expert[0]] = tensor
    most = max(map(len, found.values()), default=0)
    for pattern, experts in found.items():
        shapes = {tuple(each.shape) for each in experts.values()}
        if len(experts) < most or len(shapes) > 1:
            problem = f"{len(experts)} of {most} experts" if len(experts) < most else f"experts of {len(shapes)} shapes"
            raise SourceError(
                f"{checkpoint.folder}: {problem} for {pattern}. Download or copy the whole checkpoint again."
            )


def _load_complete(
    checkpoint: Checkpoint,
    tensors: Mapping[str, Tensor],
    architecture: str,
    blocks: str | Callable[[Any], str],
    extra: Mapping[str, bool],
) -> Any:
    with source_errors(checkpoint, architecture, Exception):  # the library raises all kinds of exceptions
        model, report = load_state(checkpoint.folder, architecture, tensors, load("torch").float32, **extra)
    unexpected = [key for key in report.get("unexpected_keys") or () if not _is_zero_bias(tensors, str(key))]
    report = {**report, "unexpected_keys": unexpected}
    _check_complete(checkpoint, architecture, blocks if isinstance(blocks, str) else blocks(model), report)
    return model


def _is_zero_bias(tensors: Mapping[str, Tensor], name: str) -> bool:
    """Whether a tensor is a bias of zeros, as tools that quantise write for layers that have none."""
    if not name.endswith(".bias") or (tensor := tensors.get(name)) is None:
        return False
    compute = getattr(tensor, "compute", None)
    return not (compute() if compute else tensor).any()


def load_state(
    folder: Path, architecture: str, tensors: Mapping[str, Tensor], dtype: dtype, **extra: bool
) -> tuple[Any, dict[str, Any]]:
    """The `transformers` model of the config.json in `folder` with these weights, and the library's report of keys."""
    transformers = load("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(str(folder), attn_implementation="eager", trust_remote_code=False)
    if hasattr(config, QUANTIZATION):  # the weights are given as they multiply
        delattr(config, QUANTIZATION)
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


def check_finite(
    checkpoint: Checkpoint, outputs: Iterable[npt.NDArray[np.generic]], inputs: str = "plain English sentences"
) -> None:
    """Raise `SourceError` if one of the source model's `outputs` on `inputs` has a NaN or an infinity."""
    if not all(np.isfinite(array).all() for array in outputs):
        raise SourceError(
            f"{checkpoint.folder}: the source model itself returns NaN or infinity on {inputs}. "
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
        reason = one_line(cause, 300).rstrip(".")
        if isinstance(error, MemoryError) or "not enough memory" in reason:
            raise MemoryError from error
        raise SourceError(
            f"{checkpoint.folder}: config.json and the weights do not form a {architecture}: {type(cause).__name__}: "
            f"{reason}. Compare config.json with the original, or download the checkpoint again."
        ) from error


@contextmanager
def tracing_errors(checkpoint: Checkpoint, architecture: str, step: str = "traced") -> Iterator[None]:
    """Convert what torch and transformers raise for a model that cannot be traced, or run, into a `SourceError`."""
    try:
        yield
    except (SourceError, MemoryError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise SourceError(
            f"{checkpoint.folder}: architecture {architecture} could not be {step}, so it is not supported with "
            f"this configuration: {type(cause).__name__}: {one_line(cause, 200)}. Export a similar model."
        ) from error


def _check_complete(checkpoint: Checkpoint, architecture: str, blocks: str, report: dict[str, Any]) -> None:
    """Reject a checkpoint with missing weights, which the library would fill randomly, or with too many blocks."""
    missing = sorted(str(key) for key in report.get("missing_keys") or [] if not str(key).endswith(IN_TRAINING))
    mismatched = sorted(
        f"{name}: got {list(found)}, expected {list(expected)}"
        for name, found, expected in report.get("mismatched_keys") or []
    )
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
