"""Find, load and run the user's own functions that a recipe names as `module:function`, with one-line errors.

They are arbitrary code, so the user must allow them. The module is a .py file next to the recipe, or below its folder
(`folder.module`), and not outside of it; if there is none, a module on the Python path.
"""

from __future__ import annotations

import importlib
import importlib.util
import keyword
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from intaglio.errors import GraphError, IntaglioError, UsageError, one_line

LOADED_AS = "_intaglio_recipe"  # prefix of the module's name, so that it does not shadow another module
LONGEST = 200  # characters of an exception's message


@dataclass(frozen=True)
class UserFunction:
    """A function with its origin. `sha256` is the hash of the module's source."""

    name: str
    file: Path
    sha256: str
    function: Callable[..., Any]

    def __call__(self, argument: Any) -> Any:
        """Call the function; its prints go to standard error. Raises `UsageError` for its exceptions."""
        with _one_line_errors(self.name, self.file):
            return self.function(argument)


class UserCode:
    """The user's functions of a recipe. A module is loaded once."""

    def __init__(self, folder: Path):
        """`folder`: the folder of the recipe."""
        self._folder = folder
        self._modules: dict[str, tuple[ModuleType, Path, str]] = {}

    def function(self, name: str) -> UserFunction:
        """Return the function `module:function`. Raises `UsageError` if it does not exist or its module fails."""
        module_name, function_name = split(name)
        if module_name not in self._modules:
            self._modules[module_name] = self._load(name, module_name)
        module, file, digest = self._modules[module_name]
        found = getattr(module, function_name, None)
        if not callable(found):
            raise UsageError(f"{name}: {file} has no function {function_name}. Correct the name in the recipe.")
        return UserFunction(name, file, digest, found)

    def _load(self, name: str, module: str) -> tuple[ModuleType, Path, str]:
        file = self._folder.joinpath(*module.split(".")).with_suffix(".py")
        if file.is_file():
            if not file.resolve().is_relative_to(self._folder.resolve()):
                raise UsageError(
                    f"{name}: {file} leads to {file.resolve()}, expected a file in the recipe's folder. Copy it there."
                )
            return _from_file(name, file)
        return _from_path(name, module, file)


def split(name: str) -> tuple[str, str]:
    """Split `module:function` into its parts. Raises `GraphError` for anything else."""
    module, separator, function = name.partition(":")
    parts = [*module.split("."), function]
    if not separator or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise GraphError(f"function {name!r}: expected module:function, such as my_changes:rewrite.")
    return module, function


def _from_file(name: str, file: Path) -> tuple[ModuleType, Path, str]:
    """Load the module of a file; the hashed source is what runs, so compiled copies are neither read nor written."""
    with _one_line_errors(name, file):
        source = file.read_bytes()
        module = ModuleType(f"{LOADED_AS}_{file.stem}")
        module.__file__ = str(file)
        sys.modules[module.__name__] = module  # dataclasses look up their module
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module, file, sha256(source).hexdigest()


def _from_path(name: str, module: str, beside: Path) -> tuple[ModuleType, Path, str]:
    """Load a module from the Python path; `beside` is the file that was searched before."""
    with _one_line_errors(name, beside):  # its parent packages are run
        try:
            spec = importlib.util.find_spec(module)
        except (ModuleNotFoundError, ValueError):
            spec = None
    if spec is None:
        raise UsageError(f"{name}: there is no {beside}, and no module {module} on the Python path. Put it there.")
    file = Path(spec.origin or "")
    if file.suffix != ".py":
        raise UsageError(f"{name}: the module {module} has no source file to record. Name one that is a .py file.")
    with _one_line_errors(name, file):
        return importlib.import_module(module), file, sha256(file.read_bytes()).hexdigest()


@contextmanager
def _one_line_errors(name: str, file: Path) -> Iterator[None]:
    """Convert exceptions of the user's code to a `UsageError` with the line; redirect its prints to standard error."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except IntaglioError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = file.name if line is None else f"line {line} of {file.name}"
        message = one_line(error, LONGEST)
        raise UsageError(
            f"{name}: {type(error).__name__} in {where}{f': {message}' if message else ''}. Fix the function."
        ) from error
