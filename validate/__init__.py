"""Validate each step with Polygraphy: runners, comparisons, bisection and reports.

Importing this package sets the attribute `validate` of `intaglio`, where the function of that name is expected. So
the package is callable: `intaglio.validate("bundle")` calls that function.
"""

import inspect
import sys
from types import ModuleType

from intaglio.validate.validate import validate

__all__ = ["validate"]


class _CallablePackage(ModuleType):
    __call__ = staticmethod(validate)
    __signature__ = inspect.signature(validate)


sys.modules[__name__].__class__ = _CallablePackage
