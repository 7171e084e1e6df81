"""Find the tensors of a checkpoint by the paths that an adapter has: those of the parameters in the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError, one_line
from intaglio.extras import load

# Parts at the beginning of a path that one of two classes of the same model may not have.
WRAPPERS = ("model", "transformer", "language_model")


class ParameterNames:
    """The names of a checkpoint's tensors, and which parameters of the model are one.

    `tied` maps a parameter to the one whose numbers it has, as the class in transformers and config.json say.
    """

    def __init__(self, names: Iterable[str], architecture: str, folder: Path):
        """`architecture`: a class of transformers, or another, which ties nothing. `folder`: of config.json."""
        self._names = set(names)
        self._wrappers, self.tied = {*WRAPPERS}, dict[str, str]()
        known: Any = getattr(load("transformers"), architecture, None) if architecture else None
        if known is not None:
            self._wrappers.add(known.base_model_prefix)
            self.tied = _tied(known, folder)
        self._by_bare: dict[str, list[str]] = {}
        for name in self._names:
            self._by_bare.setdefault(self.bare(name), []).append(name)

    def find(self, path: str) -> str | None:
        """The name of the parameter's own tensor; None if there is none, or several might be meant."""
        if path in self._names:
            return path
        found = self._by_bare.get(self.bare(path), [])
        return found[0] if len(found) == 1 else None

    def others(self, path: str) -> list[str]:
        """The paths of the parameters that are tied to the one at `path`."""
        bare = self.bare(path)
        groups: dict[str, list[str]] = {}
        for name, of in self.tied.items():
            groups.setdefault(of, [of]).append(name)
        group = next((each for each in groups.values() if bare in map(self.bare, each)), [])
        return [name for name in group if self.bare(name) != bare]

    def bare(self, path: str) -> str:
        """The path without the parts at its beginning that some classes leave out."""
        first, _, rest = path.partition(".")
        return self.bare(rest) if rest and first in self._wrappers else path


def _tied(known: Any, folder: Path) -> dict[str, str]:
    keys = getattr(known, "_tied_weights_keys", None)
    try:
        config = load("transformers").AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # the library raises all kinds of exceptions
        reason = one_line(error, 200).rstrip(".")
        raise SourceError(f"{folder}: config.json is not readable: {reason}. Compare it with the original.") from error
    return dict(keys) if isinstance(keys, dict) and getattr(config, "tie_word_embeddings", False) else {}
