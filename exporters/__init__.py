"""Checkpoint -> ONNX bundle: one folder for each kind of models.

Names are imported on first use, so that the process that checks a graph does not load the libraries that made it.
"""

from intaglio.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.exporters.checkpoints.converted import Converted
    from intaglio.exporters.convert_checkpoint import convert
    from intaglio.exporters.export_model import Exported, export
    from intaglio.exporters.source import load_module, module_options

__all__ = ["Converted", "Exported", "convert", "export", "load_module", "module_options"]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(
        __name__,
        {
            "Converted": ".checkpoints.converted",
            "Exported": ".export_model",
            "convert": ".convert_checkpoint",
            "export": ".export_model",
            "load_module": ".source",
            "module_options": ".source",
        },
    )


def __dir__() -> list[str]:
    """The names of this module, including those not imported yet."""
    return sorted({*globals(), *__all__})
