"""The tokenizer of a sentence-transformers folder, with the settings that the library applies to it.

The library reads them from sentence_bert_config.json (or its older names) in the Transformer's folder, and from
tokenizer_config.json. The tokenizer itself is made by transformers, as there: it may differ from what tokenizer.json
alone says, for example in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from intaglio.bundle.manifest import Manifest, Prompt
from intaglio.bundle.text_records import PairTemplate, TokenVectors
from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import check_tokenizer
from intaglio.exporters.encoders.description import EncoderDescription
from intaglio.exporters.encoders.pair_template import STRUCTURED, PairTemplates
from intaglio.exporters.encoders.sentence_modules import LOGITS, TOKENS, check_keys
from intaglio.exporters.encoders.sentence_transformers import SentenceHead
from intaglio.exporters.encoders.token_vectors import Limits, read_token_vectors, register_prefixes
from intaglio.exporters.files.config import integer
from intaglio.extras import load
from intaglio.files.json_object import read_json
from intaglio.runtime.text.embedding_prompts import QUERY

SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# What older versions call the arguments of transformers, and what may stand in them without any effect on embeddings.
ARGUMENTS = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
WITHOUT_EFFECT = (
    "attn_implementation", "low_cpu_mem_usage", "use_safetensors", "use_cache", "use_fast", "trust_remote_code",
    "clean_up_tokenization_spaces", "local_files_only",
)  # fmt: skip
TOKENIZER_OPTIONS = ("model_max_length", "padding_side", "truncation_side", "do_lower_case", "strip_accents")
OF_VECTORS = ("query_length", "document_length", "query_expansion")  # of a model with a vector for each token
EXPECTED: dict[str, tuple[Any, ...]] = {"tokenizer_name_or_path": (None,), **dict.fromkeys(OF_VECTORS, (None,))}
# The transformer_task of a folder -> what its Transformer returns, and what the modules after it call that
RETURNED = {
    "feature-extraction": ("last_hidden_state", TOKENS),
    "fill-mask": ("logits", TOKENS),
    "text-generation": ("logits", LOGITS),
    "sequence-classification": ("logits", "scores"),
}
MESSAGE_FORMATS = ("flat", STRUCTURED)
# Arguments of apply_chat_template of transformers that are no variables of a template.
NOT_VARIABLES = (
    "conversation", "messages", "tools", "documents", "chat_template", "continue_final_message", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
)  # fmt: skip


@dataclass(frozen=True)
class SentenceTokenizer:
    """A tokenizer (of the library tokenizers) that truncates as sentence-transformers does, and the prompts."""

    backend: Any
    limit: int  # tokens of a text, special tokens included
    prompts: dict[str, Prompt]
    pair: PairTemplate | None  # of a cross-encoder that reads pairs by its chat template
    vectors: TokenVectors | None  # of a model with a vector for each token


def record_sentence(manifest: Manifest, head: SentenceHead, tokenizer: SentenceTokenizer) -> None:
    """Record in `manifest` what its texts are limited to, its prompts, and its similarity."""
    maximum = manifest.axes["sequence"].maximum
    manifest.truncation = tokenizer.limit if tokenizer.limit != maximum else None
    manifest.prompts = tokenizer.prompts
    manifest.pair, manifest.vectors = tokenizer.pair, tokenizer.vectors
    manifest.max_active_dims = head.max_active_dims
    manifest.default_prompt = head.default_prompt
    manifest.similarity = head.similarity


def read_settings(folder: Path, task: str, several: bool = False) -> tuple[dict[str, Any], Path]:
    """The settings of the Transformer in `folder` under the names of version 6, and their file; `task` of the library.

    `several`: of a model with a vector for each token. Raises `SourceError` for a setting that would change what is
    computed, and is not supported.
    """
    where = next((folder / name for name in SETTINGS if (folder / name).is_file()), folder / SETTINGS[0])
    settings = read_json(where) if where.is_file() else {}
    settings = {ARGUMENTS.get(key, key): value for key, value in settings.items()}
    known = ("max_seq_length", "do_lower_case", "modality_config", "processing_kwargs", "unpad_inputs")
    check_keys(settings, where, *known, *EXPECTED, "module_output_name", "transformer_task", *ARGUMENTS.values())
    output, name = RETURNED[task]
    named = (None, task) if name == TOKENS else (task,)  # which the library takes for another one if it is missing
    expected = {key: values for key, values in EXPECTED.items() if not several or key not in OF_VECTORS}
    for key, accepted in {**expected, "module_output_name": (None, name), "transformer_task": named}.items():
        if settings.get(key) not in accepted:
            _refuse(
                where, key, settings.get(key), "leave it out" if accepted == (None,) else f"expected {accepted[-1]!r}"
            )
    text = {"method": "forward", "method_output_name": output}
    modalities = settings.get("modality_config", {"text": text})
    messages = [{"text": text, "message": {**text, "format": each}} for each in MESSAGE_FORMATS]
    if modalities not in [{"text": text}, *(messages if name != TOKENS else [])]:
        _refuse(where, "modality_config", modalities, f"expected only text: {text}")
    for key in ("model_kwargs", "config_kwargs"):
        _check_arguments(where, key, settings, (*WITHOUT_EFFECT, "dtype", "torch_dtype"))
    _check_arguments(where, "processor_kwargs", settings, (*WITHOUT_EFFECT, *TOKENIZER_OPTIONS))
    return settings, where


def _check_arguments(where: Path, key: str, settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
    given = settings.get(key, {})
    if not isinstance(given, dict) or (unknown := sorted(set(given) - set(known))):
        _refuse(where, key, unknown[0] if isinstance(given, dict) else given, f"expected any of {', '.join(known)}")


def _refuse(where: Path, key: str, value: object, fix: str) -> NoReturn:
    raise SourceError(f"{where}: {key} {str(value)[:100]!r} is not supported, {fix}. Choose another model.")


def sentence_tokenizer(checkpoint: Checkpoint, described: EncoderDescription) -> SentenceTokenizer | None:
    """The tokenizer of `checkpoint` as the library makes it; None if it is not from sentence-transformers.

    Raises `SourceError` for settings that are not supported.
    """
    head = described.head
    if head is None:
        return None
    settings, where = read_settings(checkpoint.folder, head.transformer_task, head.mask is not None)
    settings = {**head.transformer, **settings}
    options = {key: value for key, value in settings.get("processor_kwargs", {}).items() if key in TOKENIZER_OPTIONS}
    if settings.get("max_seq_length") is not None:
        options.setdefault("model_max_length", integer(settings, "max_seq_length", 1, where=str(where)))
    tokenizer = _load(checkpoint, options)
    register_prefixes(tokenizer, head.prefixes)
    if tokenizer.padding_side == "left" and described.family.counts_padding:
        _refuse(
            checkpoint.folder / "tokenizer_config.json", "padding_side", "left", "an embedding would depend on others"
        )
    limit = _limit(tokenizer, "model_max_length" in options, checkpoint, settings, where)
    limit = min(limit, described.positions)
    backend = tokenizer.backend_tokenizer
    if settings.get("do_lower_case"):
        _lower_case(backend)
    backend.no_padding()
    if limit <= tokenizer.num_special_tokens_to_add(pair=not head.embeds):
        _refuse(where, "maximum length", limit, "expected room for a token beside the special ones")
    backend.enable_truncation(limit, direction=tokenizer.truncation_side)
    excluded = head.excludes_prompt
    templates = _templates(tokenizer, settings, where)
    prompts = {
        name: Prompt(
            text,
            _tokens(tokenizer, text) if excluded else 0,
            templates.of(text) if templates else None,
            head.mask is not None and name == QUERY,
        )
        for name, text in head.prompts.items()
    }
    pair = templates.of(head.prompts[head.default_prompt] if head.default_prompt else "") if templates else None
    vectors = None
    if head.mask is not None:
        if settings.get("processing_kwargs"):
            _refuse(where, "processing_kwargs", settings["processing_kwargs"], "leave it out")
        limits = Limits.of(limit, described.positions, checkpoint.config)
        vectors, limit = read_token_vectors(tokenizer, settings, head.mask, head.means, limits, where)
        backend.enable_truncation(limit, direction=tokenizer.truncation_side)
    return SentenceTokenizer(backend, limit, prompts, pair, vectors)


def _templates(tokenizer: Any, settings: Mapping[str, Any], where: Path) -> PairTemplates | None:
    """The chat template of a cross-encoder that reads pairs as messages; None for one that does not."""
    message = settings.get("modality_config", {}).get("message")
    options = dict(_processing(settings, where, "chat_template"))
    if message is None:
        if options:
            _refuse(where, "processing_kwargs", {"chat_template": options}, "expected a modality 'message' for it")
        return None
    if options.pop("restore_suffix", True) is not True:
        _refuse(where, "restore_suffix", False, "expected True")
    if taken := sorted({*options} & {*NOT_VARIABLES}):
        _refuse(where, "chat_template", taken[0], "expected variables of the template")
    return PairTemplates(tokenizer, message["format"] == STRUCTURED, options, str(where.parent))


def _load(checkpoint: Checkpoint, options: Mapping[str, Any]) -> Any:
    check_tokenizer(checkpoint)
    load("torch")  # which some of the library's tokenizers need
    transformers = load("transformers")
    transformers.utils.logging.set_verbosity_error()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(checkpoint.folder), trust_remote_code=False, local_files_only=True, **options
        )
        assert tokenizer.backend_tokenizer.get_vocab_size() > 0
    except Exception as error:  # the library raises all kinds of exceptions
        raise SourceError(
            f"{checkpoint.folder}: no readable tokenizer ({one_line(error, 200)}). Put its tokenizer.json there."
        ) from error
    return tokenizer


def _limit(tokenizer: Any, stated: bool, checkpoint: Checkpoint, settings: Mapping[str, Any], where: Path) -> int:
    """The tokens of a text at which the library truncates; `stated`: not to be capped by the model's positions."""
    limit = tokenizer.model_max_length
    positions = checkpoint.config.get("max_position_embeddings", -1)
    if not stated and isinstance(positions, int) and positions > 0:
        limit = min(limit, positions)
    text = _processing(settings, where, "text")
    if set(text) - {"max_length"}:
        _refuse(where, "processing_kwargs", {"text": dict(text)}, "expected only text: max_length")
    limit = integer(text, "max_length", 1, default=limit, where=str(where)) if text else limit
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        _refuse(checkpoint.folder / "tokenizer_config.json", "model_max_length", limit, "expected an integer")
    return limit


def _processing(settings: Mapping[str, Any], where: Path, key: str) -> Mapping[str, Any]:
    """What processing_kwargs has for the modality `key`."""
    processing = settings.get("processing_kwargs") or {}
    found = processing.get(key, {}) if isinstance(processing, dict) else None
    if not isinstance(found, dict) or set(processing) - {"text", "chat_template"}:
        _refuse(where, "processing_kwargs", processing, "expected only text: max_length, and chat_template")
    return found


def _lower_case(backend: Any) -> None:
    """Lower the case of texts before all else, as the library does, unless the tokenizer does so itself."""
    from tokenizers import normalizers

    given = backend.normalizer
    parts = [] if given is None else [given]
    if isinstance(given, normalizers.Sequence):
        parts = [given[index] for index in range(len(given))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def _tokens(tokenizer: Any, prompt: str) -> int:
    """The first tokens of a text that are the prompt's: those of the prompt alone, without a special one at its end."""
    ids = tokenizer.backend_tokenizer.encode(prompt).ids if prompt else []
    return len(ids) - (bool(ids) and ids[-1] in tokenizer.all_special_ids)
