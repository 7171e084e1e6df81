"""The manifest of a newly written graph."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from intaglio.bundle.bundle import FORMAT, Axis, Manifest, Source, tensor_spec
from intaglio.bundle.model_file import count_weights
from intaglio.exporters.checkpoints.family import Family
from intaglio.plugins import custom_operators
from intaglio.version import __version__


def new_manifest(
    model: ir.Model,
    source: Source,
    family: Family,
    task: str,
    dtype: str,
    axes: dict[str, Axis],
    **details: Any,
) -> Manifest:
    """The manifest of `model`, which was made from `source`.

    `details`: fields of `Manifest` that only some models have, such as `decoder`; and `architecture` and `parameters`,
    which are by default the family's and the number of weights of `model`.
    """
    common: dict[str, Any] = {
        "custom_operators": custom_operators(model.graph),
        "architecture": family.architecture,
        "parameters": details.get("parameters") or count_weights(model),
    }
    return Manifest(
        format=FORMAT,
        created_by=f"intaglio {__version__}",
        source=source,
        family=family.model_type,
        task=task,
        dtype=dtype,
        inputs=[tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()],
        outputs=[tensor_spec(value) for value in model.graph.outputs],
        axes=axes,
        **{**common, **details},
    )
