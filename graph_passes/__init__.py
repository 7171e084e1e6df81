"""ONNX -> ONNX: one pass per file, and recipes, the ordered lists of passes.

The verb is `compress`. It also uses `intaglio.training`, another stage, to compute sensitivities, so it is defined
above both, in `intaglio.compression`, and imported from there on first use.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.compression import compress

__all__ = ["compress"]

if not TYPE_CHECKING:  # a type checker would accept any name of this module

    def __getattr__(name):
        """Return the verb; import its module on first use."""
        if name != "compress":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return globals().setdefault(name, import_module("intaglio.compression").compress)


def __dir__() -> list[str]:
    """Return the names of this module, including the verb."""
    return sorted({*globals(), *__all__})
