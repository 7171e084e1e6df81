"""ONNX -> ONNX: one pass per file, and recipes, the ordered lists of passes.

The verb is `compress`. Where a recipe goes by sensitivities it lets `intaglio.training` compute them, which is a stage
beside this one; so it stands above both, in `intaglio.compression`, and is imported from there when it is asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.compression import compress

__all__ = ["compress"]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's

    def __getattr__(name):
        """The verb, whose module is imported when it is first asked for."""
        if name != "compress":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return globals().setdefault(name, import_module("intaglio.compression").compress)


def __dir__() -> list[str]:
    """The names of this module, the verb among them."""
    return sorted({*globals(), *__all__})
