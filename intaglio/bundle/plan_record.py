"""What a manifest records of a TensorRT engine (a plan) beside its shapes: what opens it, and where its weights are."""

from __future__ import annotations

import msgspec

HIGHEST_LEVEL = 5  # of TensorRT's optimisation
# Option of `build` and of commands that generate -> the bits of cached keys and of values.
# Keys stay in 8: in 4 they cost 4 % of perplexity and more, some models 70 %.
CACHE_BITS = {8: (8, 8), 4: (8, 4)}
HARDWARE = ("none", "ampere+", "same-compute-capability")  # which other GPUs an engine runs on


class PlanOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a plan, each an option of `build` of the same name."""

    version_compatible: bool = False  # later versions of the library open it; it holds code for the host
    hardware_compatibility: str = HARDWARE[0]  # one of HARDWARE
    strip_weights: bool = False  # it has no weights, and gets those of the bundle's graph when it is opened
    refit: bool = False  # its weights can be replaced by others
    optimization_level: int | None = None  # of the builder; None: the library's default

    @property
    def given(self) -> list[str]:
        """The names of the options that are not their defaults, as on the command line."""
        names = (name for name in self.__struct_fields__ if getattr(self, name) != getattr(DEFAULT_PLAN, name))
        return [f"--{name.replace('_', '-')}" for name in names]

    def __str__(self) -> str:
        parts = (
            "version-compatible" if self.version_compatible else "",
            self.hardware_compatibility if self.hardware_compatibility != HARDWARE[0] else "",
            "no weights" if self.strip_weights else "",
            "refittable" if self.refit else "",
            "" if self.optimization_level is None else f"level {self.optimization_level}",
        )
        return ", ".join(filter(None, parts))


DEFAULT_PLAN = PlanOptions()
