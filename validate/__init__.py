"""Proving each step with Polygraphy: runners, comparisons, bisection and reports."""

from intaglio.validate.validate import validate

__all__ = ["validate"]
