"""The passes by name, and the recipes, which are ordered lists of passes."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from intaglio.errors import GraphError, UsageError, one_line
from intaglio.graph_passes.calibrate import Calibrate
from intaglio.graph_passes.canonicalize import Canonicalize
from intaglio.graph_passes.contract import Pass
from intaglio.graph_passes.float16 import Float16
from intaglio.graph_passes.fold_batch_norm import FoldBatchNorm
from intaglio.graph_passes.fold_constants import FoldConstants
from intaglio.graph_passes.fold_scales import FoldScales
from intaglio.graph_passes.inline import Inline
from intaglio.graph_passes.integer.audit_integer_only import AuditIntegerOnly
from intaglio.graph_passes.integer.check_encoder import CheckEncoder
from intaglio.graph_passes.integer.correct_biases import CorrectBiases
from intaglio.graph_passes.integer.equalize import Equalize
from intaglio.graph_passes.integer.fuse_projections import FuseProjections
from intaglio.graph_passes.integer.fuse_residual import FuseResidual
from intaglio.graph_passes.integer.h_gelu import HGelu
from intaglio.graph_passes.integer.integer_add import IntegerAdd
from intaglio.graph_passes.integer.integer_attention import IntegerAttention
from intaglio.graph_passes.integer.integer_embedding import IntegerEmbedding
from intaglio.graph_passes.integer.integer_gelu import IntegerGelu
from intaglio.graph_passes.integer.integer_layer_norm import IntegerLayerNorm
from intaglio.graph_passes.integer.integer_linear import IntegerLinear
from intaglio.graph_passes.integer.integer_requantize import IntegerRequantize
from intaglio.graph_passes.integer.integer_softmax import IntegerSoftmax
from intaglio.graph_passes.integer.quantize_activations import QuantizeActivations
from intaglio.graph_passes.integer.quantize_weights import QuantizeWeights
from intaglio.graph_passes.raise_opset import RaiseOpset
from intaglio.graph_passes.surgeon import Surgeon
from intaglio.graph_passes.weights.awq import Awq
from intaglio.graph_passes.weights.gptq import Gptq
from intaglio.graph_passes.weights.int8_absmax import Int8Absmax
from intaglio.graph_passes.weights.int8_zeropoint import Int8ZeroPoint
from intaglio.graph_passes.weights.lut import Lut
from intaglio.graph_passes.weights.lut_sparse import LutSparse
from intaglio.graph_passes.weights.mixed import Mixed
from intaglio.graph_passes.weights.prune_magnitude import PruneMagnitude
from intaglio.graph_passes.weights.prune_rows import PruneRows
from intaglio.graph_passes.weights.rtn import Rtn
from intaglio.safe_yaml import load_yaml

PASSES: dict[str, type[Pass]] = {
    "raise_opset": RaiseOpset,
    "fold_constants": FoldConstants,
    "canonicalize": Canonicalize,
    "fold_batch_norm": FoldBatchNorm,
    "fold_scales": FoldScales,
    "calibrate": Calibrate,
    "float16": Float16,
    "check_encoder": CheckEncoder,
    "equalize": Equalize,
    "h_gelu": HGelu,
    "quantize_weights": QuantizeWeights,
    "quantize_activations": QuantizeActivations,
    "integer_embedding": IntegerEmbedding,
    "integer_attention": IntegerAttention,
    "integer_softmax": IntegerSoftmax,
    "integer_linear": IntegerLinear,
    "integer_add": IntegerAdd,
    "integer_gelu": IntegerGelu,
    "integer_layer_norm": IntegerLayerNorm,
    "fuse_residual": FuseResidual,
    "integer_requantize": IntegerRequantize,
    "correct_biases": CorrectBiases,
    "fuse_projections": FuseProjections,
    "audit_integer_only": AuditIntegerOnly,
    "lut": Lut,
    "lut_sparse": LutSparse,
    "mixed": Mixed,
    "rtn": Rtn,
    "gptq": Gptq,
    "awq": Awq,
    "int8_absmax": Int8Absmax,
    "int8_zeropoint": Int8ZeroPoint,
    "prune_magnitude": PruneMagnitude,
    "prune_rows": PruneRows,
    "inline": Inline,
    "surgeon": Surgeon,
}

CANONICAL: list[Pass] = [RaiseOpset(), FoldConstants(), Canonicalize()]

# Scales, shifts and batch normalisations become part of the weights.
FOLDED: list[Pass] = [*CANONICAL, FoldBatchNorm(), FoldScales()]

# From a calibrated floating-point graph to integer operators.
LOWERING: list[Pass] = [
    IntegerEmbedding(),
    QuantizeWeights(),
    QuantizeActivations(),
    IntegerAttention(),
    IntegerSoftmax(),
    IntegerLinear(),
    IntegerGelu(),
    IntegerAdd(),
    IntegerLayerNorm(),
    FuseResidual(),
    IntegerRequantize(),
]

INT8_ONLY: list[Pass] = [
    *CANONICAL,
    CheckEncoder(),
    Calibrate(),
    Equalize(),
    Calibrate(),
    *LOWERING,
    AuditIntegerOnly(),
    CorrectBiases(),
    FuseProjections(),
]

# INT8 products between floating-point GELU, softmax and normalisation, which TensorRT fuses itself.
INT8_QDQ: list[Pass] = [
    *FOLDED,
    Calibrate(),
    Equalize(),
    Calibrate(),
    IntegerEmbedding(where="everywhere"),
    QuantizeWeights(),
    QuantizeActivations(where="products"),
]

MAX_BYTES = 65536  # of a recipe file
MAX_PASSES = 200  # of a recipe

RECIPES: dict[str, list[Pass]] = {
    "canonical": CANONICAL,
    "fold": FOLDED,
    "float16": [*FOLDED, Float16()],
    "int8-only": INT8_ONLY,
    "int8-qdq": INT8_QDQ,
    "int8-weights": [*FOLDED, IntegerEmbedding(where="everywhere"), QuantizeWeights(where="everywhere")],
    "h-gelu": [*CANONICAL, HGelu()],
    "lut": [Lut()],  # a decoder that intaglio exported is canonical
    "lut-sparse": [LutSparse()],
    "mixed": [Mixed()],
    "rtn": [*CANONICAL, Rtn()],
    "gptq": [*CANONICAL, Gptq()],
    "awq": [*CANONICAL, Awq()],
    "int8-absmax": [*CANONICAL, Int8Absmax()],
    "int8-zeropoint": [*CANONICAL, Int8ZeroPoint()],
    "prune-magnitude": [*CANONICAL, PruneMagnitude()],
    "prune-rows": [*CANONICAL, PruneRows()],
    "inlined": [Inline()],
}


def load_recipe(recipe: str | Path, options: Mapping[str, Any] | None = None) -> tuple[str, list[Pass]]:
    """Load a recipe, one of `RECIPES` or a YAML file; return its name and passes.

    `options` override the options of these names in every pass that has them; None means not given.

    A file lists passes by name, with options that differ from the defaults:

        passes:
          - canonicalize
          - float16: {keep: [Softmax]}
          - surgeon: my_changes:rewrite

    Raises `GraphError` for an invalid recipe, `UsageError` for an option that no pass has.
    """
    name, passes = str(recipe), _passes(recipe)
    for option, value in (options or {}).items():
        if value is not None:
            passes = _with_option(name, passes, option, value)
    return name, passes


def _passes(recipe: str | Path) -> list[Pass]:
    name = str(recipe)
    if name in RECIPES:
        return list(RECIPES[name])
    path = Path(recipe)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        raise GraphError(f"recipe {name!r}: expected one of {', '.join(RECIPES)}, or the path of a YAML file.")
    entries = _read(path)
    return [_parse_pass(entry, f"recipe {name}: pass {number}") for number, entry in enumerate(entries, 1)]


def _with_option(recipe: str, passes: Sequence[Pass], option: str, value: Any) -> list[Pass]:
    """Set `option` in every pass that has it."""
    if not any(_has(each, option) for each in passes):
        names = ", ".join(name for name, listed in RECIPES.items() if any(_has(each, option) for each in listed))
        flag = f"--{option.replace('_', '-')}" + ("" if value is True else f" {value}")
        raise UsageError(f"{flag}: no pass of recipe {recipe} has this option. Recipes that do: {names}.")
    return [dataclasses.replace(each, **{option: value}) if _has(each, option) else each for each in passes]


def _has(graph_pass: Pass, option: str) -> bool:
    return any(field.name == option for field in dataclasses.fields(graph_pass))


def _read(path: Path) -> list[Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise GraphError(f"recipe {path}: {path.stat().st_size} bytes, expected at most {MAX_BYTES}. Shorten it.")
        content = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GraphError(f"recipe {path}: {error.strerror}. Give a recipe's name or a readable YAML file.") from error
    except GraphError:
        raise
    except Exception as error:  # the library raises various exceptions for odd numbers and dates
        reason = one_line(error, 200)
        raise GraphError(f"recipe {path}: not YAML ({reason}). Write it as `passes: [canonicalize]`.") from error
    passes = content.get("passes") if isinstance(content, dict) else None
    if not isinstance(passes, list) or not passes or set(content) != {"passes"}:
        raise GraphError(f"recipe {path}: expected the one key `passes` with a list. Write `passes: [canonicalize]`.")
    if len(passes) > MAX_PASSES:
        raise GraphError(f"recipe {path}: {len(passes)} passes, expected at most {MAX_PASSES}. Shorten it.")
    return passes


def _parse_pass(entry: Any, where: str) -> Pass:
    """Parse a pass from `name`, `{name: {option: value}}`, or `{name: value}` if it has a main option."""
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, options),) = entry.items()
    else:
        name, options = entry, {}
    if not isinstance(name, str) or name not in PASSES:
        raise GraphError(f"{where}: got {reprlib.repr(name)}, expected one of {', '.join(PASSES)}.")
    options = {} if options is None else options
    if isinstance(options, str) and PASSES[name].main_option is not None:
        options = {PASSES[name].main_option: options}
    fields = [field.name for field in dataclasses.fields(PASSES[name])]
    known = ", ".join(fields) or "none"
    if not isinstance(options, dict):
        raise GraphError(
            f"{where}: {name} got {reprlib.repr(options)}, expected its options with values. It has: {known}."
        )
    if unknown := [str(option) for option in options if option not in fields]:
        raise GraphError(f"{where}: {name} has no option {', '.join(unknown)}. Its options: {known}.")
    try:
        made: Pass = msgspec.convert(options, PASSES[name])
    except msgspec.ValidationError as error:
        said = str(error).replace(" - at `$.", " for `")
        raise GraphError(f"{where}: {name}: {said}. {_expected(PASSES[name], said)}") from error
    return made


def _expected(kind: type, said: str) -> str:
    """Return the allowed values of the option named in the message, if they can be listed."""
    for option, hint in get_type_hints(kind).items():
        choices: list[Any] = list(get_args(hint)) if get_origin(hint) is Literal else []
        if isinstance(hint, type) and issubclass(hint, Enum):
            choices = [member.value for member in hint]
        if choices and said.endswith(f"`{option}`"):
            return f"Expected one of: {', '.join(map(str, choices))}."
    return "Fix the value."
