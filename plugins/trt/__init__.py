"""TensorRT plugins made from the operators' specs and CUDA kernels, of two kinds.

Full TensorRT gets "quickly deployable" plugins with an ahead-of-time implementation: `register` describes every
operator to TensorRT in Python, TensorRT asks for a kernel and its launch while it builds, and embeds both in the
engine, which then needs neither Python nor this package. `explicit` converts a graph to the form that these plugins
need. They require TensorRT 10.9 or newer.

TensorRT-RTX, which has no such plugins, and builders without Python, as trtexec, get nodes of one plugin in C++ that
bring their kernels (`kernel_nodes`). It is in the library of our CPU kernels, which TensorRT loads (`loading`), to
build such engines and to run them.
"""

from intaglio.plugins.ort import plugin_errors
from intaglio.plugins.trt.explicit import explicit
from intaglio.plugins.trt.kernel_nodes import use_kernel_plugins
from intaglio.plugins.trt.loading import load_plugins, load_plugins_to_build
from intaglio.plugins.trt.registration import register

__all__ = ["explicit", "load_plugins", "load_plugins_to_build", "plugin_errors", "register", "use_kernel_plugins"]
