"""The passes by name, as recipes list them."""

from __future__ import annotations

from intaglio.graph_passes.calibration.calibrate import Calibrate
from intaglio.graph_passes.canonicalize import Canonicalize
from intaglio.graph_passes.contract import Pass
from intaglio.graph_passes.float16 import Float16
from intaglio.graph_passes.folding.fold_batch_norm import FoldBatchNorm
from intaglio.graph_passes.folding.fold_constants import FoldConstants
from intaglio.graph_passes.folding.fold_scales import FoldScales
from intaglio.graph_passes.inline import Inline
from intaglio.graph_passes.integer.audit_integer_only import AuditIntegerOnly
from intaglio.graph_passes.integer.check_encoder import CheckEncoder
from intaglio.graph_passes.integer.correct_biases import CorrectBiases
from intaglio.graph_passes.integer.equalize import Equalize
from intaglio.graph_passes.integer.fusion.fuse_linear import FuseLinear
from intaglio.graph_passes.integer.fusion.fuse_projections import FuseProjections
from intaglio.graph_passes.integer.fusion.fuse_residual import FuseResidual
from intaglio.graph_passes.integer.h_gelu import HGelu
from intaglio.graph_passes.integer.integer_add import IntegerAdd
from intaglio.graph_passes.integer.integer_attention import IntegerAttention
from intaglio.graph_passes.integer.integer_embedding import IntegerEmbedding
from intaglio.graph_passes.integer.integer_gelu import IntegerGelu
from intaglio.graph_passes.integer.integer_layer_norm import IntegerLayerNorm
from intaglio.graph_passes.integer.integer_linear import IntegerLinear
from intaglio.graph_passes.integer.integer_multiply import IntegerMultiply
from intaglio.graph_passes.integer.integer_requantize import IntegerRequantize
from intaglio.graph_passes.integer.integer_softmax import IntegerSoftmax
from intaglio.graph_passes.integer.positions.integer_rotary import IntegerRotary
from intaglio.graph_passes.integer.positions.merge_rotary import MergeRotary
from intaglio.graph_passes.integer.split_projections import SplitProjections
from intaglio.graph_passes.lookup_tables.lut import Lut
from intaglio.graph_passes.lookup_tables.lut_sparse import LutSparse
from intaglio.graph_passes.opsets.raise_opset import RaiseOpset
from intaglio.graph_passes.pruning.prune_magnitude import PruneMagnitude
from intaglio.graph_passes.pruning.prune_rows import PruneRows
from intaglio.graph_passes.quantize_dequantize.quantize_activations import QuantizeActivations
from intaglio.graph_passes.quantize_dequantize.quantize_weights import QuantizeWeights
from intaglio.graph_passes.user.surgeon import Surgeon
from intaglio.graph_passes.weights.awq import Awq
from intaglio.graph_passes.weights.gptq import Gptq
from intaglio.graph_passes.weights.int8_absmax import Int8Absmax
from intaglio.graph_passes.weights.int8_zeropoint import Int8ZeroPoint
from intaglio.graph_passes.weights.mixed import Mixed
from intaglio.graph_passes.weights.narrow_weights import NarrowWeights
from intaglio.graph_passes.weights.rtn import Rtn

PASSES: dict[str, type[Pass]] = {
    "raise_opset": RaiseOpset,
    "fold_constants": FoldConstants,
    "canonicalize": Canonicalize,
    "fold_batch_norm": FoldBatchNorm,
    "fold_scales": FoldScales,
    "calibrate": Calibrate,
    "float16": Float16,
    "check_encoder": CheckEncoder,
    "split_projections": SplitProjections,
    "merge_rotary": MergeRotary,
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
    "integer_multiply": IntegerMultiply,
    "integer_rotary": IntegerRotary,
    "integer_layer_norm": IntegerLayerNorm,
    "fuse_residual": FuseResidual,
    "integer_requantize": IntegerRequantize,
    "correct_biases": CorrectBiases,
    "fuse_projections": FuseProjections,
    "fuse_linear": FuseLinear,
    "audit_integer_only": AuditIntegerOnly,
    "lut": Lut,
    "lut_sparse": LutSparse,
    "mixed": Mixed,
    "narrow_weights": NarrowWeights,
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
