"""Quantisation-aware fine-tuning of an integer-only bundle, with the floating-point bundle as its teacher."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intaglio.accuracy.metrics import max_abs
from intaglio.bundle.bundle import Bundle, Manifest, PassRecord, TensorSpec, create
from intaglio.bundle.model_file import load, save
from intaglio.display.progress import step
from intaglio.errors import BundleError, GraphError, UsageError
from intaglio.extras import load as load_library
from intaglio.files.atomic import check_output_directory
from intaglio.plugins import OPS
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.text.tokenizer import TOKENIZER
from intaglio.storage.upload import uploads
from intaglio.training.integer.samples import Sample, batches, load_samples, shuffled, split
from intaglio.version import __version__

if TYPE_CHECKING:
    from intaglio.training.integer.network import IntegerNetwork

NAME = "train_int8_only"  # of the manifest's record
OPTION = "--data"
BOUND = 1e-5  # of the largest value of an output of the head: torch and ONNX Runtime sum in different orders


class Trained(msgspec.Struct):
    """The result of `train_int8_only`.

    The losses are on held-out samples: of the given bundle, and of the written one, which is the best of all evaluated
    states, including the given one.
    """

    bundle: str
    teacher: str
    outputs: list[str]  # outputs compared with the teacher's
    steps: int
    best_step: int  # 0: no state was better than the given bundle
    loss_before: float
    loss_after: float
    samples: int
    held_out: int
    trained: int  # integers
    changed: int  # of them
    seconds: float


@uploads()
def train_int8_only(
    bundle: str | Path,
    output: str | Path,
    teacher: str | Path,
    data: str | Path,
    steps: int = 200,
    batch_size: int = 8,
    learning_rate: float = 0.02,
    bias_learning_rate: float = 0.01,
    max_tokens: int = 128,
    embeddings: bool = False,
    seed: int = 0,
    force: bool = False,
) -> Trained:
    """Fine-tune the integers of `bundle` (from the recipe int8-only), and write the result to `output`.

    Weights and biases of the linear layers and normalisations are trained to fit the outputs to those of `teacher`, the
    floating-point bundle; with `embeddings`, the int8 tables too. Scales do not change. `data` is a UTF-8 file with one
    text per line, truncated to `max_tokens`, or an .npz file of arrays by input name; a tenth of it is held out, and
    the best state evaluated on it is kept.

    Learning rates are in units of an int8 weight: Adam moves a weight by up to about the rate in each step;
    `bias_learning_rate` applies to biases and normalisations, in units of equal effect. They rise during the first
    tenth of the steps and fall to 0 along a cosine. Raises `BundleError`, `EngineError`, `GraphError`, `UsageError`,
    `StorageError`; nothing is left at `output` then.
    """
    _check_options(steps, batch_size, seed, learning_rate, bias_learning_rate)
    _check_apart(Path(output), teacher)
    check_output_directory(Path(output), force)
    started = time.monotonic()
    with step("reading"):
        source, other = Bundle.open(bundle), Bundle.open(teacher)
        _check_bundles(source, other)
        outputs = _common_outputs(source, other)
        samples, used = load_samples(source, data, max_tokens)
        random = np.random.default_rng(seed)
        training, held_out = split(samples, random, f"{OPTION} {data}")
        load_library("torch")
        from intaglio.training.integer.distiller import Distiller
        from intaglio.training.integer.network import IntegerNetwork

        model = load(source.model_path)
        network = IntegerNetwork(model, embeddings)
    with OnnxRuntimeEngine(other, spinning=False) as engine:
        with step("running the teacher"):
            distiller = Distiller(network, engine, outputs, list(batches(held_out, batch_size)))
        before = network.integers()
        rates = {"weight": learning_rate, "embedding": learning_rate}
        rates |= {"bias": bias_learning_rate, "layer_norm": bias_learning_rate}
        best_step, losses = distiller.train(shuffled(training, batch_size, random), steps, rates)
    after = network.integers()
    result = Trained(
        bundle=str(output),
        teacher=str(teacher),
        outputs=outputs,
        steps=steps,
        best_step=best_step,
        loss_before=losses[0],
        loss_after=losses[best_step],
        samples=len(training),
        held_out=len(held_out),
        trained=sum(array.size for array in after.values()),
        changed=sum(int(np.count_nonzero(after[name] != before[name])) for name in after),
        seconds=time.monotonic() - started,
    )
    options = {
        "teacher": Path(teacher).name, "data": Path(data).name, "sha256": used.sha256, "steps": steps,
        "batch_size": batch_size, "learning_rate": learning_rate, "bias_learning_rate": bias_learning_rate,
        "max_tokens": max_tokens, "embeddings": embeddings, "seed": seed,
    }  # fmt: skip
    with step("writing"), create(output, force) as draft:
        draft.copy_companions(source)
        draft.manifest = _manifest(source, _record(result, options))
        network.write()
        save(model, draft.model_path)
        _check_export(draft.model_path, network, distiller.held_out[0])
    return result


def _record(result: Trained, options: dict[str, Any]) -> PassRecord:
    """The manifest's entry."""
    losses = {"outputs": result.outputs, "loss_before": result.loss_before, "loss_after": result.loss_after}
    counts = {
        "samples": result.samples,
        "held out": result.held_out,
        "best step": result.best_step,
        "integers trained": result.trained,
        "integers changed": result.changed,
    }
    return PassRecord(NAME, {**options, **losses}, counts)


def _manifest(source: Bundle, record: PassRecord) -> Manifest:
    return msgspec.structs.replace(
        source.manifest,
        created_by=f"intaglio {__version__}",
        passes=[*source.manifest.passes, record],
        engines=[],
    )


def _check_options(steps: int, batch_size: int, seed: int, *rates: float) -> None:
    for name, value, least in (("steps", steps, 1), ("batch size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}.")
    for rate in rates:
        if not 0 <= rate < math.inf:
            raise UsageError(f"learning rate {rate}: expected 0 or a positive number, such as 0.02.")


def _check_apart(output: Path, teacher: str | Path) -> None:
    """Raise `UsageError` if the output would overwrite the teacher."""
    if output.resolve() == Path(teacher).resolve():
        raise UsageError(f"output {output}: is the teacher, which would be overwritten. Choose another path.")


def _check_bundles(source: Bundle, teacher: Bundle) -> None:
    """Raise `BundleError` unless the first is integer-only, the second is not, and both have the same inputs."""
    if not set(source.manifest.custom_operators) & set(OPS):
        raise BundleError(
            f"bundle {source.path}: has no integer operators to train. Create one from a floating-point bundle with: "
            "intaglio compress FLOAT -o INT8 --recipe int8-only --calibration TEXTS"
        )
    if teacher.manifest.custom_operators:
        raise BundleError(
            f"teacher {teacher.path}: has integer operators, expected a floating-point bundle. "
            f"Give the one that {source.path} was made from."
        )
    ours, theirs = source.manifest.inputs, teacher.manifest.inputs
    if sorted(ours, key=str) != sorted(theirs, key=str):
        raise BundleError(
            f"teacher {teacher.path}: has the inputs {_shown(theirs)}, expected {_shown(ours)}. "
            f"Give the bundle that {source.path} was made from."
        )
    tokenizers = [each.manifest.files.get(TOKENIZER) for each in (source, teacher)]
    if tokenizers[0] != tokenizers[1]:
        raise BundleError(
            f"teacher {teacher.path}: has another {TOKENIZER}. Give the bundle that {source.path} was made from."
        )


def _common_outputs(source: Bundle, teacher: Bundle) -> list[str]:
    """The floating-point outputs that both have, with equal shapes. Raises `BundleError` if there is none."""
    ours = [spec for spec in source.manifest.outputs if spec.dtype.startswith("float")]
    theirs = {spec.name: spec.shape for spec in teacher.manifest.outputs}
    common = [spec.name for spec in ours if theirs.get(spec.name) == spec.shape]
    if not common:
        raise BundleError(
            f"teacher {teacher.path}: has the outputs {_shown(teacher.manifest.outputs)}, expected one of "
            f"{_shown(ours)}. "
            f"Give the bundle that {source.path} was made from."
        )
    return common


def _shown(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for spec in specs)


def _check_export(path: Path, network: IntegerNetwork, feeds: Sample) -> None:
    """Run the written graph on a batch. Raises `GraphError` if it differs from the trained network."""
    import torch

    with OnnxRuntimeEngine(path, spinning=False) as engine:
        written = engine.run(feeds)
    with torch.no_grad():
        trained = network({name: torch.from_numpy(array) for name, array in feeds.items()})
    for name, array in written.items():
        bound = BOUND * max_abs(array, np.zeros_like(array))
        if not (error := max_abs(array, trained[name].numpy())) <= bound:
            raise GraphError(
                f"{name}: the written graph differs from the trained one by {error:.3g}, expected at most {bound:.3g}. "
                "This is a bug in intaglio."
            )
