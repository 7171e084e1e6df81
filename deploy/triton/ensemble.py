"""An encoder's graph on Triton's onnxruntime or tensorrt backend, between models on the Python backend: an ensemble.

The tokenizer comes before it, and the function from logits to scores after it, if there are classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from intaglio.bundle.bundle import MODEL, Bundle
from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.manifest import TensorSpec
from intaglio.bundle.model_file import outline
from intaglio.deploy.triton.config import Message, Word, tensor
from intaglio.deploy.triton.model import (
    TEXTS_IN,
    WARM_UP,
    TritonModel,
    TritonOptions,
    batched,
    instances,
    python_code,
    settings,
    warm_up,
)
from intaglio.deploy.triton.plans import Plans, find_plans
from intaglio.deploy.triton.serving.settings import LENGTH_STEP, TEXT, ScoresSettings, TokenizerSettings
from intaglio.deploy.triton.tensors import described, graph_tensor, labels_file, outputs, text_warm_up
from intaglio.errors import UsageError
from intaglio.plugins import ort as kernels
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.tasks import TASKS
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.targets import TARGETS

LIBRARY = "intaglio_operators.so"
GRAPH_TASKS = ("embed", "classify")  # whose graph returns one row for each text


def ensemble(
    name: str, bundle: Bundle, options: TritonOptions, tokenizer: Tokenizer, prompted: str | None
) -> list[TritonModel]:
    """The models of an encoder, the ensemble `name` last. Raises `UsageError` for what the backend cannot run."""
    manifest = bundle.manifest
    if manifest.task not in GRAPH_TASKS:
        raise UsageError(
            f"bundle {bundle.path}: its task is {manifest.task!r}, --backend {options.backend} takes "
            f"{' and '.join(GRAPH_TASKS)}. Use --backend python."
        )
    whole = [spec for spec in (*manifest.inputs, *manifest.outputs) if not spec.shape or spec.shape[0] != "batch"]
    if whole:
        raise UsageError(f"bundle {bundle.path}: {whole[0].name} has no axis for batches. Use --backend python.")
    plans = find_plans(bundle, options.gpus) if options.backend == "tensorrt" else None
    output = next(spec for spec in manifest.outputs if spec.name == TASKS[manifest.task].output)
    classes = manifest.task == "classify"
    graph = _graph(f"{name}_graph", bundle, options, tokenizer, output, plans)
    models = [_tokenizer(f"{name}_tokenizer", bundle, options, tokenizer, prompted, plans), graph]
    steps = [
        _step(models[0].name, {TEXT: TEXT}, {spec.name: spec.name for spec in manifest.inputs}),
        _step(
            graph.name,
            {spec.name: spec.name for spec in manifest.inputs},
            {output.name: output.name if classes else "embedding"},
        ),
    ]
    if classes:
        models.append(_scores(f"{name}_scores", bundle, options, output))
        steps.append(_step(models[2].name, {"logits": output.name}, {"label": "label", "scores": "scores"}))
    config = {
        "max_batch_size": graph.config["max_batch_size"],
        "input": TEXTS_IN,
        "output": outputs(bundle, output.dtype),
        "ensemble_scheduling": {"step": steps},
    }
    # A version needs its folder, although this one has nothing in it.
    return [*models, TritonModel(name, "ensemble", config, {".keep": b""}, labels_file(bundle))]


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Message:
    """A step of an ensemble: the model's names of tensors -> the ensemble's."""

    def pairs(names: Mapping[str, str]) -> list[Message]:
        return [{"key": key, "value": value} for key, value in names.items()]

    return {"model_name": model, "model_version": -1, "input_map": pairs(inputs), "output_map": pairs(outputs)}


def _tokenizer(
    name: str,
    bundle: Bundle,
    options: TritonOptions,
    tokenizer: Tokenizer,
    prompted: str | None,
    plans: Plans | None,
) -> TritonModel:
    prompt = find_prompt(bundle.manifest, prompted)
    lengths = [length for length in (tokenizer.max_length, plans and plans.longest) if length is not None]
    request, files = text_warm_up()
    given = TokenizerSettings(
        ",".join(tokenizer.inputs),
        tokenizer.pad_token_id,
        min(lengths, default=None),
        plans.shortest if plans else 1,
        prompt.text,
        prompt.excluded_tokens,
    )
    config = {
        **batched(options, plans and plans.texts),
        "input": TEXTS_IN,
        "output": [tensor(each, "int64", [-1]) for each in tokenizer.inputs],
        **instances(options, Word("KIND_CPU")),
        **settings(given),
        "model_warmup": request,
    }
    written = {**python_code("tokenizer"), TOKENIZER: bundle.path / TOKENIZER}
    return TritonModel(name, "python", config, written, files)


def _graph(
    name: str,
    bundle: Bundle,
    options: TritonOptions,
    tokenizer: Tokenizer,
    output: TensorSpec,
    plans: Plans | None,
) -> TritonModel:
    feeds = tokenizer.pad(tokenizer.encode([WARM_UP]), LENGTH_STEP, plans.shortest if plans else 0)
    request, files = warm_up(
        "sentence",
        {key: (described("int64", array.shape[1:]), array.astype(np.int64).tobytes()) for key, array in feeds.items()},
    )
    axis = bundle.manifest.axes.get("batch")
    shared = {
        "input": [graph_tensor(spec) for spec in bundle.manifest.inputs],
        "output": graph_tensor(output),
        "model_warmup": request,
    }
    if plans is not None:
        config = {
            **batched(options, plans.texts),
            **shared,
            **instances(options, Word("KIND_GPU")),
            "cc_model_filenames": [{"key": key, "value": file.name} for key, file in plans.files.items()],
        }
        return TritonModel(name, "tensorrt", config, {file.name: file for file in plans.files.values()}, files)
    config = {
        **batched(options, axis.maximum if axis else None),
        **shared,
        **instances(options),
        "default_model_filename": MODEL,
        **({"parameters": _threads(options.threads)} if options.threads else {}),
    }
    weights = (MODEL, *external_data_files(outline(bundle.model_path)))
    written: dict[str, bytes | Path] = {file: bundle.path / file for file in weights}
    if bundle.manifest.custom_operators:
        written[LIBRARY] = _library(bundle, options)
        place = f"{options.mounted_at.rstrip('/')}/{name}/{options.version}/{LIBRARY}"
        config["model_operations"] = {"op_library_filename": place}
    return TritonModel(name, "onnxruntime", config, written, files)


def _threads(count: int) -> Message:
    return {"key": "intra_op_thread_count", "value": {"string_value": str(count)}}


def _library(bundle: Bundle, options: TritonOptions) -> Path:
    """The library of custom operators. Raises `UsageError` where it has not all that the bundle needs."""
    needed = ", ".join(bundle.manifest.custom_operators)
    if TARGETS[options.target].needs_gpu:
        raise UsageError(
            f"--target {options.target}: Triton's ONNX Runtime runs the custom operators {needed} of {bundle.path} on "
            "the CPU only. Use --target ort-cpu, or --backend python."
        )
    path = kernels.library()
    if path is None or not {*bundle.manifest.custom_operators} <= {*kernels.operators()}:
        raise UsageError(
            f"bundle {bundle.path}: needs the custom operators {needed}, and intaglio was installed without a "
            "compiler, so there is no library of them. Use --backend python, or install g++ and then intaglio again."
        )
    return path


def _scores(name: str, bundle: Bundle, options: TritonOptions, output: TensorSpec) -> TritonModel:
    zeros = np.zeros(len(bundle.manifest.labels), output.dtype)
    request, files = warm_up("logits", {"logits": (described(output.dtype, zeros.shape), zeros.tobytes())})
    config = {
        **batched(options, None),
        "input": tensor("logits", output.dtype, [len(bundle.manifest.labels)]),
        "output": outputs(bundle, "float32"),
        **instances(options, Word("KIND_CPU")),
        **settings(ScoresSettings(bundle.manifest.activation)),
        "model_warmup": request,
    }
    return TritonModel(name, "python", config, python_code("scores"), {**files, **labels_file(bundle)})
