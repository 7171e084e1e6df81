"""The custom operators of the ONNX domain `intaglio`: one operator, one folder."""

from intaglio.plugins.contract import Operator
from intaglio.plugins.registry import CUDA_DOMAIN, DOMAIN, OPS, custom_operators

__all__ = ["CUDA_DOMAIN", "DOMAIN", "OPS", "Operator", "custom_operators"]
