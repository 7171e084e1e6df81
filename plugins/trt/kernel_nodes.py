"""Convert the nodes of our operators to nodes of the plugin CudaKernel, which bring their kernels.

They are for our library of plugins (`library`), which TensorRT loads where Python is missing: trtexec, Triton, programs
in C++, TensorRT-RTX. It knows no operator: each node, and later the engine, has these fields,

`operator`: the operator's name, for messages.
`kernel`: the name of the kernel.
`launch`: the numbers of its launch (`plugins.cuda.launching.programs`), separated by spaces; behind them, each after a
"|", those of launches that may be faster, which TensorRT measures as tactics.
`inputs`, `outputs`: their dtypes, separated by spaces.
`image_name`: a name for the operator's compiled kernels, with a hash of their bytes.
`image`: those bytes, as a tensor: a cubin, or PTX where no cubin is made for the GPU. Only the first node of each
operator has it.

The inputs and outputs are as `explicit` makes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.plugins.cuda.compiler import Images, built_for, images_for
from intaglio.plugins.cuda.launching.expressions import length
from intaglio.plugins.cuda.launching.programs import alternative_programs, launch_program
from intaglio.plugins.nodes import naming, tensors
from intaglio.plugins.registry import DOMAIN
from intaglio.plugins.trt.explicit import become_plugin, plugin_dtype, read_plugged

PLUGIN = "CudaKernel"


def use_kernel_plugins(model: ir.Model, sm: int, images_for: Callable[[str, int], Images] = images_for) -> ir.Model:
    """Convert the nodes of `model`, in place, for GPUs of `sm`, and return it.

    `images_for`: an operator's compiled kernels. Raises `GraphError` with the node's name for a node that no CUDA
    kernel supports, `EngineError` for a GPU that is too old, `MissingExtraError` if the kernels cannot be compiled.
    """
    built = built_for(sm)
    int8_of: dict[ir.Value, ir.Value] = {}
    names: dict[str, str] = {}  # operator's folder -> name of its image
    for graph in model.graphs():
        for node in [node for node in graph if node.domain == DOMAIN]:
            with naming(node):
                found = read_plugged(node)
                operator, inputs, attributes = found
                given = tensors(operator, inputs, length)
                kernel, numbers = launch_program(operator, given, attributes, built)
                launches = [numbers, *alternative_programs(operator, given, attributes, built)]
                image = b""
                if operator.folder not in names:
                    cubin, ptx = images_for(operator.folder, sm)
                    image = cubin or ptx
                    names[operator.folder] = f"{operator.folder}-{hashlib.sha256(image).hexdigest()[:16]}"
                fields: dict[str, Any] = {
                    "operator": operator.name,
                    "kernel": kernel,
                    "launch": " | ".join(" ".join(map(str, each)) for each in launches),
                    "inputs": " ".join(plugin_dtype(each.dtype) for each in given if each is not None),
                    "outputs": "",
                    "image_name": names[operator.folder],
                }
                if image:
                    fields["image"] = ir.tensor(np.frombuffer(image, np.int8), name="image")
                become_plugin(node, found, PLUGIN, fields, int8_of)
                types = [output.dtype.numpy().name for output in node.outputs if output.dtype is not None]
                node.attributes["outputs"] = ir.AttrString("outputs", " ".join(types))
    return model
