"""Validate each step with Polygraphy: runners, comparisons, bisection and reports.

The verb is imported on first use, so that the process that `bench` measures holds the engine alone.
"""

from intaglio.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.validation.validate_bundle import validate

__all__ = ["validate"]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(__name__, {"validate": ".validate_bundle"})
