"""An encoder as models of Triton: one on the Python backend, or an ensemble."""

from __future__ import annotations

from intaglio.bundle.bundle import Bundle
from intaglio.deploy.triton.ensemble import ensemble
from intaglio.deploy.triton.model import (
    TEXTS_IN,
    TritonModel,
    TritonOptions,
    batched,
    bundle_files,
    instances,
    python_code,
    settings,
)
from intaglio.deploy.triton.serving.settings import BUNDLE, EncoderSettings
from intaglio.deploy.triton.tensors import labels_file, outputs, text_warm_up
from intaglio.errors import BundleError
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.tasks import EMBEDDING_TASKS
from intaglio.runtime.text.tokenizer import Tokenizer


def encoder_models(name: str, bundle: Bundle, options: TritonOptions) -> list[TritonModel]:
    """The models of an encoder; clients use the one called `name`. Raises `UsageError`, `BundleError`."""
    manifest = bundle.manifest
    if manifest.task not in (*EMBEDDING_TASKS, "classify"):
        raise BundleError(
            f"bundle {bundle.path}: its task is {manifest.task or 'unknown'!r}, expected one of "
            f"{', '.join((*EMBEDDING_TASKS, 'classify'))}, or a decoder. Leave it out."
        )
    if manifest.pair is not None:
        raise BundleError(
            f"bundle {bundle.path}: scores a query and a text together, and a model on Triton takes one text. Leave it "
            "out; intaglio serve has /v1/rerank."
        )
    prompted = options.prompt_name if manifest.task in EMBEDDING_TASKS else None
    find_prompt(manifest, prompted)
    tokenizer = Tokenizer.open(bundle)
    if any("\n" in label for label in manifest.labels):
        raise BundleError(f"bundle {bundle.path}: a label has a line feed, and Triton reads one label a line.")
    if options.backend == "python":
        return [_python_model(name, bundle, options, prompted)]
    return ensemble(name, bundle, options, tokenizer, prompted)


def _python_model(name: str, bundle: Bundle, options: TritonOptions, prompted: str | None) -> TritonModel:
    batch = bundle.manifest.axes.get("batch")
    request, files = text_warm_up()
    config = {
        **batched(options, batch.maximum if batch else None),
        "input": TEXTS_IN,
        "output": outputs(bundle, "float32"),
        **instances(options),
        **settings(EncoderSettings(options.target, options.threads, prompted)),
        "model_warmup": request,
    }
    written = {**python_code("encoder"), **bundle_files(bundle, BUNDLE)}
    return TritonModel(name, "python", config, written, {**files, **labels_file(bundle)})
