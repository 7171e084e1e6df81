"""The folder of a sentence-transformers model: modules.json lists its modules, each with a folder of its own.

Newer versions of the library save the Transformer in the root, older ones in a folder such as `0_Transformer`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from intaglio.errors import BundleError, SourceError, one_line
from intaglio.files.hashes import inside
from intaglio.files.input_files import read_text

MODULES = "modules.json"
MAX_BYTES = 1 << 20  # of modules.json; real ones have a few hundred
LIBRARY = "sentence_transformers."
TRANSFORMER = "Transformer"
MASKED = "MLMTransformer"  # the same with its head for masked tokens, as older versions name it


class Module(msgspec.Struct):
    """One line of modules.json."""

    type: str
    path: str
    name: str = ""

    @property
    def kind(self) -> str:
        """The class of the library, such as "Pooling"; for a class from elsewhere its whole path."""
        return self.type.rpartition(".")[2] if self.type.startswith(LIBRARY) else self.type


def read_modules(root: Path) -> list[Module]:
    """The modules of the folder `root` in order; none if it is not from sentence-transformers.

    Raises `SourceError` for a damaged list.
    """
    file = root / MODULES
    if not file.is_file():
        return []
    try:
        if (size := file.stat().st_size) > MAX_BYTES:
            raise SourceError(f"{file}: {size} bytes, expected at most {MAX_BYTES}. Download or copy the file again.")
        text = read_text(file, error=SourceError, fix="Download or copy it again.")
        modules = msgspec.json.decode(text, type=list[Module])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{file}: damaged ({one_line(error)}). Download or copy the file again.") from error
    if not modules:
        raise SourceError(f"{file}: lists no modules, expected Transformer and Pooling. Download or copy it again.")
    names = [module.name for module in modules if module.name]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"{file}: two modules are named {repeated[0]!r}. Give each a name of its own.")
    return modules


def transformer_folder(root: Path) -> Path:
    """The folder of the Transformer, with config.json, weights and tokenizer: `root`, or a folder in it.

    Raises `SourceError` if the first module is another one, such as StaticEmbedding.
    """
    modules = read_modules(root)
    if not modules:
        return root
    if modules[0].kind not in (TRANSFORMER, MASKED):
        raise SourceError(
            f"{root / MODULES}: the first module is {modules[0].kind[:100]}, expected {TRANSFORMER}. Its embeddings "
            "are not supported: choose a model that begins with a Transformer."
        )
    return module_folder(root, modules[0])


def module_folder(root: Path, module: Module) -> Path:
    """The folder of `module`. Raises `SourceError` if it is outside of `root`."""
    try:
        return root if module.path in ("", ".") else inside(root, module.path, str(root / MODULES))
    except BundleError as error:
        raise SourceError(str(error)) from error


def module_files(root: Path) -> list[str]:
    """The files of the modules and the settings that affect embeddings, relative to `root`, without the Transformer's.

    They are JSON and safetensors: the modules after the Transformer have nothing else that is read.
    """
    modules = read_modules(root)
    if not modules:
        return []
    first = transformer_folder(root)
    folders = dict.fromkeys(module_folder(root, module) for module in modules)
    others = [
        folder for folder in folders if folder not in (root, first) and folder.is_dir()
    ]  # Normalize may have none
    found = [path for folder in others for path in sorted(folder.iterdir())]
    settings = [*first.glob("sentence_*_config.json"), *root.glob("config_sentence_transformers.json"), root / MODULES]
    chosen = [*settings, *(path for path in found if path.suffix in (".json", ".safetensors") and path.is_file())]
    return [path.relative_to(root).as_posix() for path in chosen]
