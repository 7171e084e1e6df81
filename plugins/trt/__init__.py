"""TensorRT plugins made from the operators' specs and CUDA kernels.

They are of the "quickly deployable" kind, with an ahead-of-time implementation: `register` describes every operator to
TensorRT in Python, TensorRT asks for a kernel and its launch while it builds, and embeds both in the engine, which
then needs neither Python nor this package. `explicit` converts a graph to the form that these plugins need.

Requires TensorRT 10.9 or newer, the full library; for TensorRT-RTX, without such plugins, see `plugins.inlining`.
"""

from intaglio.plugins.trt.explicit import explicit
from intaglio.plugins.trt.registration import register

__all__ = ["explicit", "register"]
