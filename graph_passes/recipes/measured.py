"""What recipes measured: size and quality on named models, the source of docs/validation.md and of advice.

`python -m benchmarks.weights.verdicts` prints these rows; those of hama are of docs/integer-only.md, those of SmolLM2
of docs/chat-model.md, by `intaglio validate` with the sentences that ship with intaglio. Other models differ, mostly
larger ones for the better, so this suggests recipes to try, and `validate` decides.
"""

from __future__ import annotations

import msgspec


class MeasuredModel(msgspec.Struct, frozen=True):
    """A model that recipes were measured on."""

    title: str
    weights: float  # millions
    tasks: tuple[str, ...]  # of bundles that are like it


class Measurement(msgspec.Struct, frozen=True):
    """One recipe on one model."""

    model: str  # of `MODELS`
    recipe: str
    size: float  # bytes of graph and weights, by those of the float32 bundle
    passed: bool  # by the default bounds
    measures: dict[str, float]  # of `intaglio.validation.measures.measures`, or "relative": error by the largest value
    options: str = ""  # of `compress`, besides --calibration; "": the defaults


MODELS = {
    "MiniLM": MeasuredModel("all-MiniLM-L6-v2", 22.7, ("embed", "encode", "classify", "fill-mask")),
    "small": MeasuredModel("the small model of examples/language_models", 0.2, ("generate",)),
    "large": MeasuredModel("the large model of examples/language_models", 2.8, ("generate",)),
    "SmolLM2": MeasuredModel("SmolLM2-135M-Instruct, whose weights were once 4-bit", 134.5, ("generate",)),
    "T5": MeasuredModel("that of examples/text_to_text", 0.8, ("text-to-text",)),
    "hama": MeasuredModel("hama's Conformer-CTC", 2.2, ("transcribe",)),
}


LABELS = {
    "relative": "error / largest {:.4g}",
    "mean_cosine": "cosine {:.4g}",
    "min_cosine": "smallest {:.4g}",
    "rank_correlation": "order {:.4g}",
    "kl_divergence": "KL {:.4g}",
    "perplexity_rise": "perplexity {:+.4g} %",
    "same_top": "same token {:.4g}",
    "token_errors": "tokens edited {:.4g}",
}


def described(measures: dict[str, float]) -> str:
    """Measures as one line: `KL 0.0052, perplexity +0.6 %, same token 0.93`."""
    return ", ".join(LABELS[name].format(value) for name, value in measures.items())


def _embeddings(recipe: str, size: float, passed: bool, mean: float, smallest: float, order: float) -> Measurement:
    measures = {"mean_cosine": mean, "min_cosine": smallest, "rank_correlation": order}
    return Measurement("MiniLM", recipe, size, passed, measures)


def _tokens(
    model: str,
    recipe: str,
    size: float,
    passed: bool,
    divergence: float,
    rise: float,
    same: float,
    options: str = "",
) -> Measurement:
    measures = {"kl_divergence": divergence, "perplexity_rise": rise, "same_top": same}
    return Measurement(model, recipe, size, passed, measures, options)


def _speech(recipe: str, size: float, errors: float, same: float) -> Measurement:
    return Measurement("hama", recipe, size, True, {"token_errors": errors, "same_top": same})


MEASUREMENTS = (
    Measurement("MiniLM", "float16", 0.5, True, {"relative": 0.001182}),
    Measurement("MiniLM", "float16-weights", 0.5, True, {"relative": 0.0004941}),
    _embeddings("bfloat16-weights", 0.5, True, 1.0, 1.0, 1.0),
    _embeddings("int8-weights", 0.25, True, 0.9994, 0.9981, 0.9995),
    _embeddings("rtn", 0.59, False, 0.9573, 0.8861, 0.9776),
    _embeddings("int8-absmax", 0.65, True, 0.9996, 0.9989, 0.9997),
    _embeddings("int8-zeropoint", 0.65, True, 0.9997, 0.9993, 0.9998),
    _embeddings("prune-magnitude", 1.0, False, 0.7374, 0.4337, 0.7848),
    _embeddings("prune-rows", 0.92, False, 0.8322, 0.673, 0.8565),
    _embeddings("int8-qdq", 0.25, True, 0.9975, 0.9881, 0.9975),
    _embeddings("gptq", 0.59, True, 0.984, 0.9399, 0.9872),
    _embeddings("awq", 0.59, False, 0.9573, 0.8861, 0.9776),
    _embeddings("int8-only", 0.26, True, 0.9975, 0.9876, 0.9972),
    _embeddings("h-gelu", 1.0, False, 0.9743, 0.9266, 0.9632),
    _tokens("small", "float16", 0.51, True, 2.565e-06, 0.00207, 0.9968),
    _tokens("small", "float16-weights", 0.52, True, 0.0, 0.0, 1),
    _tokens("small", "bfloat16-weights", 0.52, True, 3.901e-05, 0.01698, 0.9928),
    _tokens("small", "int8-weights", 0.62, True, 0.0004926, 0.09956, 0.9792),
    _tokens("small", "rtn", 0.62, False, 0.02463, 2.014, 0.8437),
    _tokens("small", "int8-absmax", 0.67, True, 0.0001032, 0.0602, 0.9884),
    _tokens("small", "int8-zeropoint", 0.67, True, 9.305e-05, 0.04007, 0.9894),
    _tokens("small", "prune-magnitude", 1.0, False, 0.2298, 27.18, 0.5828),
    _tokens("small", "prune-rows", 0.92, False, 0.1944, 19.56, 0.6019),
    _tokens("small", "int8-qdq", 0.63, True, 0.001437, 0.2166, 0.9674),
    _tokens("small", "gptq", 0.62, True, 0.01163, 1.42, 0.9015),
    _tokens("small", "awq", 0.62, False, 0.02429, 2.325, 0.847),
    _tokens("small", "lut", 0.69, True, 0.005171, 0.6009, 0.9287),
    _tokens("small", "lut-sparse", 0.71, True, 0.005256, 0.6396, 0.9267),
    _tokens("small", "mixed", 0.6, False, 0.287, 35.21, 0.5628),
    _tokens("large", "float16", 0.5, True, 1.449e-06, 0.001225, 0.9989),
    _tokens("large", "float16-weights", 0.5, True, 0.0, 0.0, 1),
    _tokens("large", "bfloat16-weights", 0.5, True, 8.897e-06, -0.0013, 0.9979),
    _tokens("large", "int8-weights", 0.36, True, 0.0001837, 0.01812, 0.9898),
    _tokens("large", "rtn", 0.28, True, 0.01257, 0.7911, 0.9194),
    _tokens("large", "int8-absmax", 0.38, True, 6.199e-05, 0.0245, 0.9938),
    _tokens("large", "int8-zeropoint", 0.38, True, 5.344e-05, 0.05623, 0.9948),
    _tokens("large", "prune-magnitude", 1.0, False, 0.1332, 9.291, 0.7476),
    _tokens("large", "prune-rows", 0.86, False, 0.5864, 74.09, 0.5271),
    _tokens("large", "int8-qdq", 0.36, True, 0.0008003, 0.04686, 0.9769),
    _tokens("large", "gptq", 0.28, True, 0.005128, 0.02929, 0.9432),
    _tokens("large", "awq", 0.28, True, 0.01256, 1.156, 0.918),
    _tokens("large", "lut", 0.31, True, 0.004149, 0.1341, 0.9499),
    _tokens("large", "lut-sparse", 0.32, True, 0.003535, 0.1395, 0.9544),
    _tokens("large", "mixed", 0.26, True, 0.03595, 1.335, 0.8621),
    _tokens("T5", "float16", 0.94, True, 7.532e-06, 0.01041, 1),
    _tokens("T5", "float16-weights", 0.94, True, 0.0, 0.0, 1),
    _tokens("T5", "bfloat16-weights", 0.94, True, 3.698e-06, -0.006469, 1),
    _tokens("T5", "int8-weights", 0.79, True, 7.656e-05, -0.003518, 0.9953),
    _tokens("T5", "rtn", 0.75, True, 0.009126, 0.7709, 0.9835),
    _tokens("T5", "int8-absmax", 0.79, True, 4.014e-05, -0.01867, 0.9953),
    _tokens("T5", "int8-zeropoint", 0.79, True, 3.853e-05, 0.06602, 0.9965),
    _tokens("T5", "prune-magnitude", 1.0, False, 0.08346, 13.77, 0.9588),
    _tokens("T5", "prune-rows", 0.96, False, 0.04298, 3.929, 0.967),
    _tokens("SmolLM2", "int8-absmax", 0.41, False, 0.003416, -0.07495, 0.9535),
    _tokens("SmolLM2", "rtn", 0.44, True, 0.0009865, 0.07907, 0.9819, "--bits 8 --group-size 32"),
    _tokens("SmolLM2", "int8-weights", 0.41, False, 0.006381, 0.2202, 0.9442),
    _tokens("SmolLM2", "gptq", 0.34, False, 0.1077, 10.48, 0.8079, "--group-size 32"),
    _tokens("SmolLM2", "rtn", 0.32, False, 0.4024, 28.26, 0.6732),
    _speech("fold", 1.0, 0.0, 1.0),
    _speech("float16", 0.55, 0.0, 1.0),
    _speech("int8-weights", 0.35, 0.0055, 0.996),
    _speech("int8-qdq", 0.36, 0.028, 0.972),
)
