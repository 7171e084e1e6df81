"""Export a model that reads images: its traced graph behind its image processor, compared with the source model."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from msgspec import structs

from intaglio.accuracy.default_bounds import BOUNDS, Absolute, Bounds
from intaglio.bundle.bundle import Axis, Draft, TensorSpec
from intaglio.bundle.model_file import save
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import PROCESSORS, Checkpoint
from intaglio.exporters.checkpoints.family import architecture_of
from intaglio.exporters.checkpoints.plausible import check_config
from intaglio.exporters.encoders.description import activation, class_labels
from intaglio.exporters.reference.check import Batch, Checked, check_graph, check_needed
from intaglio.exporters.reference.source_model import check_finite, tracing_errors
from intaglio.exporters.vision.family import VisionFamily
from intaglio.exporters.vision.front_end import PIXEL_VALUES, add_front_end, front_end_alone
from intaglio.exporters.vision.image_processor import ImageProcessor, library_processor, read_image_processor
from intaglio.exporters.vision.reference import build_vision, reference_outputs
from intaglio.exporters.vision.text_tower import add_text_tower
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.extras import load
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.vision.image_runner import PIXELS, feeds_of
from intaglio.samples.images import images

SIGMOID = "siglip"  # the type for which each text is true or false by itself
CHECKED = (3, 1)  # images of each batch that is compared
LEVELS = 2  # of 255: how far a colour may be from Pillow's; observed 1, and 2 once in a million
# Height and width of images that the image processor is compared on, times the size that it resizes to.
RESIZED = ((1.0, 1.0), (2.3, 1.7), (0.6, 0.9), (1.1, 3.1))


def export_vision(
    checkpoint: Checkpoint,
    family: VisionFamily,
    dtype: str,
    draft: Draft,
    bounds: Bounds | None,
    features: bool = False,
) -> dict[str, Checked]:
    """Fill `draft` with the model of `checkpoint`, and compare its outputs with the source model's within `bounds`.

    `features`: the graph takes what the image processor returns, else pixels. The image processor is compared with the
    library's on images of several sizes, the model behind it on images of the size that is not resized. Raises
    `SourceError` for a checkpoint that is inconsistent or not supported.
    """
    architecture = architecture_of(checkpoint.config, family)
    if bounds is None:
        raise check_needed(f"the graph of a {architecture} is traced")
    with step("loading the libraries"):
        load("torch")
        load("transformers")
        importlib.import_module("intaglio.exporters.encoders.trace")
    for part in (checkpoint.config.get(key) for key in ("vision_config", "text_config")):
        if isinstance(part, dict):
            check_config(replace(checkpoint, config=part), family.learned_positions, family.unread)
    processor = read_image_processor(checkpoint.folder)
    with step("checking the image processor"):
        checked = check_processor(checkpoint, processor)
    with step("running the source model"):
        feeds, expected = _source_outputs(checkpoint, family, processor)
    if features:
        feeds = [_processed(batch, processor, dtype) for batch in feeds]
    _write_graph(checkpoint, family, processor, dtype, draft, features)
    with step("checking against the source model"):
        outputs = check_graph(draft.model_path, bounds, feeds, expected)
    if not features:
        outputs = {PIXEL_VALUES: checked, **outputs}
    if family.reads_texts(architecture):
        outputs |= add_text_tower(checkpoint, architecture, dtype, draft, bounds)
    return outputs


def check_processor(checkpoint: Checkpoint, processor: ImageProcessor) -> Checked:
    """Compare the image processor's graph with the library's image processor on Pillow.

    Raises `SourceError` if they differ by more than `LEVELS`.
    """
    library = library_processor(checkpoint.folder)
    sizes = [(int(processor.height * rows) + 1, int(processor.width * columns)) for rows, columns in RESIZED]
    pictures = [images(*size, 1)[0] for size in sizes]
    read = [load("PIL.Image").fromarray(picture) for picture in pictures]  # of arrays it would guess the layout
    expected = [np.asarray(library(image)["pixel_values"][0], np.float32)[None] for image in read]
    levels = LEVELS * abs(processor.factor) / min(map(abs, processor.deviation))
    bounds = replace(BOUNDS["float32"], output=Absolute(levels * 1.001, "Pillow's rounding"), cosine=None)
    with scratch_directory("image-processor") as folder:
        save(front_end_alone(processor), folder / "image-processor.onnx")
        batches: list[Batch] = [feeds_of([picture]) for picture in pictures]
        wanted: list[Batch] = [{PIXEL_VALUES: each} for each in expected]
        checked = check_graph(folder / "image-processor.onnx", bounds, batches, wanted)[PIXEL_VALUES]
    if not checked.passed:
        raise SourceError(
            f"{checkpoint.folder}: the image processor of {PROCESSORS[0]} computes something else than its settings "
            f"state: the difference is {checked.max_abs:.3g}, expected at most {levels:.3g}. Export another model."
        )
    return checked


def _source_outputs(
    checkpoint: Checkpoint, family: VisionFamily, processor: ImageProcessor
) -> tuple[list[Batch], list[Batch]]:
    """Batches of images that need no resizing, and the source model's outputs in float32.

    Raises `SourceError` if they contain NaN or infinity.
    """
    from intaglio.exporters.vision.modules import FromPixels

    architecture = architecture_of(checkpoint.config, family)
    pictures = images(processor.height, processor.width, sum(CHECKED))
    feeds: list[Batch] = [feeds_of(pictures[sum(CHECKED[:index]) :][:count]) for index, count in enumerate(CHECKED)]
    module = FromPixels(build_vision(checkpoint, family, checkpoint.tensors()), processor).eval()
    with tracing_errors(checkpoint, architecture, "run"):
        expected = [reference_outputs(module, batch) for batch in feeds]
        again = reference_outputs(module, feeds[-1])
    check_finite(checkpoint, (array for batch in expected for array in batch.values()), "images")
    if not all(np.array_equal(array, again[name]) for name, array in expected[-1].items()):
        raise SourceError(
            f"{checkpoint.folder}: architecture {architecture} is not supported: it returns other numbers each time. "
            "Export another model."
        )
    return feeds, expected


def _processed(batch: Batch, processor: ImageProcessor, dtype: str) -> Batch:
    """What the image processor returns for a batch of images."""
    import torch

    from intaglio.exporters.vision.modules import processed

    return {PIXEL_VALUES: processed(torch.from_numpy(batch[PIXELS]), processor).numpy().astype(dtype)}


def _write_graph(
    checkpoint: Checkpoint, family: VisionFamily, processor: ImageProcessor, dtype: str, draft: Draft, features: bool
) -> None:
    """Trace the checkpoint, and write the graph and the manifest into the draft."""
    import torch

    from intaglio.exporters.encoders.trace import trace

    architecture = architecture_of(checkpoint.config, family)
    task = family.tasks[architecture]
    with step("tracing"):
        weights = checkpoint.tensors()
        module = build_vision(checkpoint, family, weights)
        with tracing_errors(checkpoint, architecture, "traced"):
            inputs = [TensorSpec(PIXEL_VALUES, dtype, ("batch", 3, *processor.size))]
            traced = trace(module, inputs, module.output_names, weights, {"batch": Axis()}, getattr(torch, dtype))
        del module, weights  # only the graph refers to them now, and releases each one once written
    with step("writing"):
        axes = {"batch": Axis()}
        if not features:
            add_front_end(traced.model, processor)
            axes |= {"height": Axis(), "width": Axis()}
        draft.manifest = new_manifest(
            traced.model,
            checkpoint.source(),
            family,
            task,
            dtype,
            axes,
            architecture=architecture,
            layers=traced.layers,
            labels=_labels(checkpoint, traced.model) if task == "classify" else [],
            activation=_activation(checkpoint, task),
            image=structs.replace(processor.image, processed=features),
        )
        save(traced.model, draft.model_path, consume=True)
    draft.notes += traced.rounding.notes()


def _labels(checkpoint: Checkpoint, model: ir.Model) -> list[str]:
    """The class names of config.json, or LABEL_0, LABEL_1, ... for as many classes as the graph has."""
    shape = model.graph.outputs[0].shape
    classes = int(shape[-1]) if shape is not None and isinstance(shape[-1], int) else None
    if not checkpoint.config.get("id2label") and classes is not None:
        return [f"LABEL_{index}" for index in range(classes)]
    names = class_labels(checkpoint.config)
    if classes not in (None, len(names)):
        raise SourceError(
            f"{checkpoint.folder}: config.json: id2label has {len(names)} classes, the model has {classes}. Fix it."
        )
    return names


def _activation(checkpoint: Checkpoint, task: str) -> str:
    """The function from logits to scores, of classes or of texts."""
    if task == "classify":
        return activation(checkpoint.config)
    return "sigmoid" if checkpoint.config["model_type"] == SIGMOID else "softmax"
