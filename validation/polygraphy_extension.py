"""The extension that `polygraphy run` loads by the entry point `polygraphy.run.plugins`: options for our runners.

    polygraphy run BUNDLE --intaglio --intaglio-pytorch
    polygraphy run BUNDLE/model.onnx --onnxrt --intaglio

The model is a bundle, or an .onnx file; a bundle's `model.onnx` represents the bundle. Polygraphy's own runners need
the file. Polygraphy generates the inputs: give token ids a range with `--val-range input_ids:[0,1000]`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from polygraphy.tools.args import ModelArgs
from polygraphy.tools.args import util as args_util
from polygraphy.tools.args.base import BaseRunnerArgs
from polygraphy.tools.script import make_invocable

from intaglio.bundle.bundle import MANIFEST, MODEL, Bundle
from intaglio.exporters import load_module, module_options
from intaglio.runtime import open_engine
from intaglio.targets import DEFAULT, summary
from intaglio.validation.comparison.runners import EngineRunner, PyTorchRunner, ReferenceRunner


def export_argument_groups() -> list[BaseRunnerArgs]:
    """The argument groups of our runners; Polygraphy calls this."""
    return [IntaglioArgs(), IntaglioPyTorchArgs(), IntaglioReferenceArgs()]


class _RunnerArgs(BaseRunnerArgs):  # type: ignore[misc]
    """A runner created by a function of this module, named in `factory`, from the model's path."""

    title: str
    option: str
    extra_help: str
    factory: str

    def get_name_opt_impl(self) -> tuple[str, str]:
        """The name for people, and the option that selects the runner."""
        return self.title, self.option

    def get_extra_help_text_impl(self) -> str:
        """Additional text for `--help`."""
        return self.extra_help

    def options(self) -> dict[str, str]:
        """Additional arguments of the factory."""
        return {}

    def add_to_script_impl(self, script: Any) -> None:
        """Write the import and the call that creates the runner into Polygraphy's script."""
        script.add_import(imports=[self.factory], frm="intaglio.validation.polygraphy_extension")
        script.add_runner(make_invocable(self.factory, self.arg_groups[ModelArgs].path, **self.options()))


class IntaglioArgs(_RunnerArgs):
    """Intaglio: run a bundle with intaglio's engines.

    Depends on:

        - ModelArgs
    """

    title = "Intaglio"
    option = "intaglio"
    extra_help = "Takes a bundle or an .onnx file, custom operators included."
    factory = "engine_runner"

    def add_parser_args_impl(self) -> None:
        """Add `--intaglio-target`."""
        self.group.add_argument(
            "--intaglio-target",
            help=f"The target that runs the bundle: {summary()}; the default is {DEFAULT}.",
            default=DEFAULT,
        )

    def parse_impl(self, args: Any) -> None:
        """Keep the target."""
        self.target = str(args_util.get(args, "intaglio_target"))

    def options(self) -> dict[str, str]:
        """The target."""
        return {"target": self.target}


class IntaglioPyTorchArgs(_RunnerArgs):
    """Intaglio PyTorch: run the checkpoint that a bundle was made from.

    Depends on:

        - ModelArgs
    """

    title = "Intaglio PyTorch"
    option = "intaglio-pytorch"
    extra_help = "Takes a bundle and runs the checkpoint that it was made from."
    factory = "pytorch_runner"


class IntaglioReferenceArgs(_RunnerArgs):
    """Intaglio Reference: run a graph in onnx.reference, with the NumPy references of intaglio's operators.

    Depends on:

        - ModelArgs
    """

    title = "Intaglio Reference"
    option = "intaglio-reference"
    extra_help = "Takes a bundle or an .onnx file and runs it in onnx.reference."
    factory = "reference_runner"


def engine_runner(path: str, target: str) -> EngineRunner:
    """A runner for one of our engines."""
    return EngineRunner(lambda: open_engine(bundle_of(Path(path)) or path, target), f"intaglio {target}")


def pytorch_runner(path: str) -> PyTorchRunner:
    """A runner for a bundle's source."""
    manifest = Bundle.open(bundle_of(Path(path)) or path).manifest
    options = module_options(manifest)
    module = partial(load_module, manifest.source, download=True, **options)  # the user asked for this runner
    return PyTorchRunner(module, manifest.inputs, manifest.outputs, "intaglio pytorch")


def reference_runner(path: str) -> ReferenceRunner:
    """A runner in `onnx.reference`."""
    bundle = bundle_of(Path(path))
    return ReferenceRunner(bundle / MODEL if bundle else Path(path), "intaglio reference")


def bundle_of(path: Path) -> Path | None:
    """The bundle at `path`, or the bundle whose model `path` is; None for other files."""
    if path.is_dir():
        return path
    return path.parent if path.name == MODEL and (path.parent / MANIFEST).is_file() else None
