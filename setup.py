"""Maps the top-level folders onto the one import name `intaglio`; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
STAGES = ("exporters", "graph_passes", "plugins", "runtime", "validate")


def packages() -> dict[str, str]:
    """Import name of every package -> its folder, found by the `__init__.py` files."""
    found = {}
    for top, name in [("intaglio", "intaglio"), *((stage, f"intaglio.{stage}") for stage in STAGES)]:
        for init in sorted((HERE / top).rglob("__init__.py")):
            folder = init.parent.relative_to(HERE)
            found[".".join([name, *folder.parts[1:]])] = str(folder)
    return found


PACKAGES = packages()

setup(
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    package_data={"intaglio": ["py.typed", "sentences.txt"], "intaglio.validate": ["report.html"]},
)
