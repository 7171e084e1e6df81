"""ONNX -> ONNX: one pass per file, and recipes, the ordered lists of passes.

The verb is `compress`. It also uses `intaglio.training`, another stage, to compute sensitivities, so it is defined
above both, in `intaglio.compression`, and imported from there on first use.
"""

from intaglio.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.compression import compress

__all__ = ["compress"]

if not TYPE_CHECKING:  # a type checker would accept any name of this module
    __getattr__ = lazy_names(__name__, {"compress": "intaglio.compression"})


def __dir__() -> list[str]:
    """Return the names of this module, including the verb."""
    return sorted({*globals(), *__all__})
