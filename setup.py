"""Maps the top-level folders onto the one import name `intaglio`, and compiles the CPU kernels into it.

Everything else is in pyproject.toml.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

HERE = Path(__file__).parent
STAGES = ("exporters", "graph_passes", "plugins", "runtime", "serve", "deploy", "training", "validation", "cli")


def packages() -> dict[str, str]:
    """Import name of every package -> its folder, found by the `__init__.py` files."""
    found = {}
    for top, name in [("intaglio", "intaglio"), *((stage, f"intaglio.{stage}") for stage in STAGES)]:
        for init in sorted((HERE / top).rglob("__init__.py")):
            folder = init.parent.relative_to(HERE)
            found[".".join([name, *folder.parts[1:]])] = str(folder)
    return found


def load_kernels() -> ModuleType:
    """plugins/ort/build.py, which cannot be imported by its name before it is installed."""
    spec = importlib.util.spec_from_file_location("kernels", HERE / "plugins" / "ort" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kernels = load_kernels()


class BuildKernels(Command):
    """Compile the CPU kernels; without a compiler, go on without them."""

    description = "compile the CPU kernels for ONNX Runtime"
    user_options: ClassVar = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        try:
            kernels.build(self.library())
        except kernels.CompileError as error:
            self.library().unlink(missing_ok=True)
            self.warn(f"no CPU kernels, the integer operators will run slowly: {error}")

    def library(self) -> Path:
        """What is compiled: in an editable installation beside the sources."""
        return kernels.LIBRARY if self.editable_mode else self.installed()

    def installed(self) -> Path:
        return Path(self.build_lib, "intaglio", "plugins", "ort", kernels.LIBRARY.name)

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(HERE.resolve())) for path in kernels.source_files()]

    def get_outputs(self) -> list[str]:
        return [str(self.installed())] if self.library().exists() else []

    def get_output_mapping(self) -> dict[str, str]:
        return {output: str(self.library()) for output in self.get_outputs()} if self.editable_mode else {}


class BuildWithKernels(build):
    sub_commands: ClassVar = [*build.sub_commands, ("build_kernels", None)]


class DistributionWithKernels(Distribution):
    has_kernels = False

    def has_ext_modules(self) -> bool:
        return self.has_kernels


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of this platform; without kernels, of any platform."""

    def run(self) -> None:
        self.run_command("build_kernels")
        self.distribution.has_kernels = self.get_finalized_command("build_kernels").library().exists()
        self.root_is_pure = not self.distribution.has_kernels
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


PACKAGES = packages()

setup(
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    package_data={
        "intaglio": ["py.typed"],
        "intaglio.samples": ["recordings/*", "sentences.txt"],
        "intaglio.exporters": ["known_models.json"],
        "intaglio.plugins.micro_kernels": ["machines/*.json"],
        "intaglio.runtime.agents.reports": ["timeline.html"],
        "intaglio.validation.reports": ["report.html"],
        "": ["*.h", "*.cu", "*.cuh"],  # the CUDA kernels are compiled where they run
    },
    exclude_package_data={"": ["*.cpp"]},
    distclass=DistributionWithKernels,
    cmdclass={"build": BuildWithKernels, "build_kernels": BuildKernels, "bdist_wheel": PlatformWheel},
)
