"""A decoder as a model of Triton: on the Python backend, decoupled, batched by Intaglio's own scheduler."""

from __future__ import annotations

import json
from pathlib import Path

from intaglio.bundle.bundle import Bundle
from intaglio.deploy.triton.config import DATA_TYPES, Word, string_bytes, tensor
from intaglio.deploy.triton.model import (
    WARM_UP,
    TritonModel,
    TritonOptions,
    bundle_files,
    python_code,
    settings,
    warm_up,
)
from intaglio.deploy.triton.serving.settings import BUNDLE, DRAFT, MESSAGES, TEXT, DecoderSettings
from intaglio.runtime.generation.requests.draft_model import check_draft
from intaglio.runtime.generation.requests.strategy_choice import method_of, sampling_of


def decoder_model(name: str, bundle: Bundle, options: TritonOptions) -> TritonModel:
    """The model of a decoder, and of its draft model if there is one. Raises `UsageError`, `BundleError`."""
    drafting = None if options.draft is None else "--draft"
    strategy, _ = sampling_of(options.strategy, "auto" if drafting else "greedy", {}, {})
    method_of(strategy, {}, drafting)
    described = {"data_type": Word(DATA_TYPES["str"]), "dims": [1]}
    few = string_bytes(json.dumps({"max_tokens": 1}))
    request, files = warm_up(
        "prompt", {TEXT: (described, string_bytes(WARM_UP)), "sampling_parameters": (described, few)}
    )
    written: dict[str, bytes | Path] = {**python_code("decoder"), **bundle_files(bundle, BUNDLE)}
    if options.draft is not None:
        check_draft(options.draft, bundle)
        written |= bundle_files(options.draft, DRAFT)
    config = {
        "max_batch_size": 0,  # a request is one text; they are batched by the scheduler
        "model_transaction_policy": {"decoupled": True},
        "input": [
            tensor(TEXT, "str", [1], optional=True),
            tensor(MESSAGES, "str", [1], optional=True),
            tensor("stream", "bool", [1], optional=True),
            tensor("sampling_parameters", "str", [1], optional=True),
        ],
        "output": [tensor("text_output", "str", [1]), tensor("finish_reason", "str", [1])],
        # Another instance would have weights and caches of its own; `rows` is what takes more requests at a time.
        "instance_group": {"count": 1, "kind": options.kind},
        **settings(
            DecoderSettings(
                options.target,
                options.threads,
                options.rows,
                strategy=options.strategy,
                cache_bits=options.cache_bits,
            )
        ),
        "model_warmup": request,
    }
    return TritonModel(name, "python", config, written, files)
