"""Validate each step with Polygraphy: runners, comparisons, bisection and reports.

Importing this package sets the attribute `validate` of `intaglio`, where the function of that name is expected. So
the package is callable: `intaglio.validate("bundle")` calls that function. The function is imported on first use, so
that the process that `bench` measures holds the engine alone.
"""

import inspect
import sys
from types import ModuleType

from intaglio.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.validate.validate_bundle import validate

__all__ = ["validate"]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(__name__, {"validate": ".validate_bundle"})


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: object, **options: object) -> object:
        return self.validate(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.validate)


sys.modules[__name__].__class__ = _CallablePackage
