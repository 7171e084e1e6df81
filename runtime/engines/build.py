"""Build engines into a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.plan_record import HARDWARE, HIGHEST_LEVEL, PlanOptions
from intaglio.errors import UsageError, storage_errors
from intaglio.processes.temporary import temporary_directory
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.build_request import BuildRequest, Built
from intaglio.runtime.engines.opening import function_at
from intaglio.storage.address import is_address
from intaglio.storage.cache import refuse_fetched
from intaglio.storage.upload import revision
from intaglio.targets import find_target

MOST_WORKSPACE = 1 << 20  # MiB: more than any GPU has


def build(
    bundle: str | Path,
    target: str,
    gpus: Sequence[str] = (),
    batch: str | None = None,
    sequence: str | None = None,
    axes: Mapping[str, str] | None = None,
    force: bool = False,
    plugins: bool = True,
    workspace: int | None = None,
    version_compatible: bool = False,
    hardware_compatibility: str = HARDWARE[0],
    strip_weights: bool = False,
    refit: bool = False,
    optimization_level: int | None = None,
    cache_bits: int | None = None,
) -> Built:
    """Build engines for `target` and add them to `bundle`; GPUs for which the build fails are in the result.

    `target`: one of `intaglio.targets`; the function `builds` of its row documents what is written. `gpus`: the GPUs to
    compile for, where the target takes any. The encoder of an encoder-decoder gets its own engines, under names that
    end with "-encoder".

    Our operators are plugins in TensorRT's engines. Without `plugins` they are standard operators in floating point,
    for comparison, or where a plugin fails. `workspace` is the most MiB that one of TensorRT's kernels may use for
    intermediate results, by default the memory of the GPU. `cache_bits` is 8 or 4: a decoder's engine then has caches
    of as many bits, see `quantize_caches`; by default they have the model's type. Other targets take none of these.

    The other options are for plans of TensorRT; TensorRT-RTX has `strip_weights` and `refit`. A
    `version_compatible` engine opens in later versions of the library. `hardware_compatibility`: "ampere+" for an
    engine that runs on an A100 and later GPUs, "same-compute-capability" for all GPUs of this one's. An engine with
    `strip_weights` has no weights and gets those of the bundle's graph when it is opened; with `refit` other programs
    can give it others. `optimization_level`: 0 (built fast) to 5 (runs fast), 3 by default.

    `batch`, `sequence` and, for axes of other names, `axes` (name -> text) are the lengths that a TensorRT engine
    accepts, as "MIN:OPT:MAX" or one number; see `profiles` for the defaults. An existing engine is replaced only with
    `force`. Raises `UsageError`, `MissingExtraError`, and, if nothing can be built, `BuildError` with the node, the
    operator, the reason and the fix; nothing is added to the bundle then.

    A bundle at an address is fetched, and replaced by one with the engines.
    """
    chosen = find_target(target)
    plan = PlanOptions(version_compatible, hardware_compatibility, strip_weights, refit, optimization_level)
    if chosen.runs_files:
        if not plugins:
            raise UsageError(f"target {target}: it has no plugins to leave out. Leave out --no-plugins.")
        if workspace is not None:
            raise UsageError(f"target {target}: its kernels have no limit of memory. Leave out --workspace.")
        if plan.given:
            raise UsageError(f"target {target}: it builds no plans, which have this option. Leave out {plan.given[0]}.")
        if cache_bits is not None:
            raise UsageError(f"target {target}: --cache-bits is for generate and serve there. Leave it out.")
    if cache_bits is not None and not plugins:
        raise UsageError(f"--cache-bits {cache_bits}: plugins write and read such caches. Leave out --no-plugins.")
    if workspace is not None and not 1 <= workspace <= MOST_WORKSPACE:
        raise UsageError(f"--workspace {workspace}: expected 1 to {MOST_WORKSPACE}, in MiB.")
    if hardware_compatibility not in HARDWARE:
        raise UsageError(f"--hardware-compatibility {hardware_compatibility}: expected one of {', '.join(HARDWARE)}.")
    if optimization_level is not None and not 0 <= optimization_level <= HIGHEST_LEVEL:
        raise UsageError(f"--optimization-level {optimization_level}: expected 0 to {HIGHEST_LEVEL}.")
    asked = profiles.asked(batch, sequence, axes)
    with revision(bundle) if is_address(bundle) else nullcontext(bundle) as local:
        opened = Bundle.open(local)
        refuse_fetched(opened.path, "give its address, to which the engines are written.")
        if chosen.builds is None:
            raise UsageError(f"target {target}: it runs graphs unchanged, there is nothing to build.")
        request = BuildRequest(gpus, asked, force, plugins, workspace, plan, cache_bits)
        place = opened.path / "engines"
        with temporary_directory(opened.path, ".build-") as folder, storage_errors(place, folder):
            built: Built = function_at(chosen.builds)(opened, chosen, request, folder)
            opened.add_files({f"engines/{path.name}": path for path in folder.iterdir()}, built.engines)
    return built
