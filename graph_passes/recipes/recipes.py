"""The recipes: ordered lists of passes, with what each does and is for.

A recipe lists its passes as a recipe file does: the name of a pass, or the name with options that differ from the
defaults. Nothing is imported for that, so that help texts and shells read this table at once; `load_recipe` makes the
passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Entry = str | Mapping[str, Mapping[str, Any]]  # a pass: its name, or its name with options

TEXT = "text"
INPUTS = "text, or recordings"


@dataclass(frozen=True)
class Recipe:
    """An ordered list of passes."""

    does: str  # in a line, for `--help`
    job: str  # which models, and when to choose it; for a column
    passes: tuple[Entry, ...]
    needs: str = ""  # real data for --calibration


CANONICAL: tuple[Entry, ...] = ("raise_opset", "fold_constants", "canonicalize")

# Scales, shifts and batch normalisations become part of the weights.
FOLDED: tuple[Entry, ...] = (*CANONICAL, "fold_batch_norm", "fold_scales")

# From a calibrated floating-point graph to integer operators.
LOWERING: tuple[Entry, ...] = (
    "integer_embedding",
    "quantize_weights",
    "quantize_activations",
    "integer_attention",
    "integer_softmax",
    "integer_linear",
    "integer_gelu",
    "integer_multiply",
    "integer_rotary",
    "integer_add",
    "integer_layer_norm",
    "fuse_residual",
    "integer_requantize",
)

INT8_ONLY: tuple[Entry, ...] = (
    *CANONICAL,
    "check_encoder",
    "split_projections",
    "merge_rotary",
    "calibrate",
    "equalize",
    "calibrate",
    *LOWERING,
    "audit_integer_only",
    "correct_biases",
    "fuse_projections",
    "fuse_linear",
)

# INT8 products between floating-point GELU, softmax and normalisation, which TensorRT fuses itself.
INT8_QDQ: tuple[Entry, ...] = (
    *FOLDED,
    "calibrate",
    "equalize",
    "calibrate",
    {"integer_embedding": {"where": "everywhere"}},
    "quantize_weights",
    {"quantize_activations": {"where": "products"}},
)

INT8_WEIGHTS: tuple[Entry, ...] = (
    *FOLDED,
    {"integer_embedding": {"where": "everywhere"}},
    {"quantize_weights": {"where": "everywhere"}},
)

RECIPES: dict[str, Recipe] = {
    "canonical": Recipe(
        "Merge operators that other tools wrote as many nodes.",
        "graphs of other tools, first",
        CANONICAL,
    ),
    "fold": Recipe(
        "Fold scales, shifts, batch normalisations into weights.",
        "speech, convolutions; exact",
        FOLDED,
    ),
    "float16": Recipe(
        "Half precision: half the size, hardly any error.",
        "any model on a GPU",
        (*FOLDED, "float16"),
    ),
    "bfloat16-weights": Recipe(
        "Weights in bfloat16, float32 arithmetic.",
        "decoders on a CPU, twice as fast",
        (*FOLDED, {"narrow_weights": {"dtype": "bfloat16"}}),
    ),
    "float16-weights": Recipe(
        "Weights in float16, float32 arithmetic.",
        "as bfloat16-weights, more exact",
        (*FOLDED, {"narrow_weights": {"dtype": "float16"}}),
    ),
    "int8-only": Recipe(
        "Integer-only encoder: I-BERT's GELU, softmax, LayerNorm.",
        "text encoders, in integers alone",
        INT8_ONLY,
        TEXT,
    ),
    "int8-qdq": Recipe(
        "INT8 weights and activations as Q/DQ, for TensorRT.",
        "TensorRT: text, decoders, speech",
        INT8_QDQ,
        INPUTS,
    ),
    "int8-weights": Recipe(
        "INT8 weights and embedding tables, float arithmetic.",
        "any model, without data",
        INT8_WEIGHTS,
    ),
    "h-gelu": Recipe(
        "The hard GELU in place of GELU, for comparison.",
        "comparisons",
        (*CANONICAL, "h_gelu"),
    ),
    "lut": Recipe(
        "2 to 4 bits: lookup tables per row (SqueezeLLM).",
        "decoders on a CPU: quality per bit",
        ("lut",),  # a decoder that intaglio exported is canonical
        TEXT,
    ),
    "lut-sparse": Recipe(
        "As lut, with outliers in a sparse matrix.",
        "as lut, weights with outliers",
        ("lut_sparse",),
        TEXT,
    ),
    "mixed": Recipe(
        "Bits and method per layer, within a given size.",
        "decoders that must fit a size",
        ("mixed",),
        TEXT,
    ),
    "rtn": Recipe(
        "2 to 6 or 8 bits in groups, rounded to nearest.",
        "large decoders, without data",
        (*CANONICAL, "rtn"),
    ),
    "gptq": Recipe(
        "As rtn, with the rounding errors compensated.",
        "decoders and encoders in 4 bits",
        (*CANONICAL, "gptq"),
        TEXT,
    ),
    "awq": Recipe(
        "As rtn, after scaling important channels up.",
        "activations with outliers",
        (*CANONICAL, "awq"),
        TEXT,
    ),
    "int8-absmax": Recipe(
        "8-bit weights, a scale per row.",
        "models on a CPU: the least error",
        (*CANONICAL, "int8_absmax"),
    ),
    "int8-zeropoint": Recipe(
        "8-bit weights, a scale and a zero point per row.",
        "as int8-absmax, skewed weights",
        (*CANONICAL, "int8_zeropoint"),
    ),
    "prune-magnitude": Recipe(
        "The smallest weights set to zero.",
        "before fine-tuning (train prune)",
        (*CANONICAL, "prune_magnitude"),
    ),
    "prune-rows": Recipe(
        "Rows of the feed-forward layers removed.",
        "as above, faster in any runtime",
        (*CANONICAL, "prune_rows"),
    ),
    "inlined": Recipe(
        "Standard ONNX operators in place of ours.",
        "any ONNX runtime, after the others",
        ("inline",),
    ),
}
