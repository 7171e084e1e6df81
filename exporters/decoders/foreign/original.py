"""The graph as the other tool wrote it, run by ONNX Runtime: its masks, and what the rewritten one has to compute.

Caches are inputs that hold the tokens before, and outputs that hold those of the step as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.bundle.model_file import outline
from intaglio.errors import EngineError, SourceError, one_line
from intaglio.exporters.decoders.foreign.site import Site
from intaglio.extras import load
from intaglio.runtime.engines.onnxruntime.engine import EXTERNAL_DATA_FOLDER

TOKENS, ATTENDED, POSITIONS = "input_ids", "attention_mask", "position_ids"
# Inputs that say how many logits are wanted, and the number that means all.
WANTED = {"num_logits_to_keep": 0, "logits_to_keep": 0}
INTEGERS = {6: "int32", 7: "int64"}  # of ONNX's element types
FLOATS = {1: "float32", 10: "float16"}
EXACT = 1  # accuracy_level of MatMulNBits that multiplies float32 numbers; with 4, activations are rounded to 8 bits

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class Original:
    """The file at `path`, whose caches are those of `sites`."""

    def __init__(self, path: Path, sites: Sequence[Site]):
        self._folder, self._model, self._sites = path.parent, outline(path, located=True), sites
        for node in self._model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = EXACT
        stored = {initializer.name for initializer in self._model.graph.initializer}
        self.dtypes = {
            value.name: value.type.tensor_type.elem_type
            for value in self._model.graph.input
            if value.name not in stored
        }
        pasts = [value.name for site in sites for value in (site.cache.past_key, site.cache.past_value)]
        known = {TOKENS, ATTENDED, POSITIONS, *WANTED, *map(str, pasts)}
        if unknown := sorted(set(self.dtypes) - known):
            raise SourceError(f"it takes {unknown[0]}, which no step has")
        for name, dtype in self.dtypes.items():
            expected = FLOATS if name in pasts else INTEGERS
            if dtype not in expected:
                raise SourceError(f"its input {name} is not {' or '.join(expected.values())}")
        self._sessions: dict[tuple[str, ...], Any] = {}

    def compute(
        self, names: Sequence[str], tokens: Sequence[int], past: int = 0, caches: Iterable[Pair] | None = None
    ) -> list[npt.NDArray[Any]]:
        """The values `names` for one sequence of `tokens` after `past` others, whose keys and values are `caches`."""
        feeds = dict(self._feeds(tokens, past, caches))
        session = self._session(tuple(names))
        wanted = {value.name for value in session.get_inputs()}
        try:
            found: list[npt.NDArray[Any]] = session.run(
                list(names), {name: array for name, array in feeds.items() if name in wanted}
            )
        except Exception as error:  # the library's exceptions have no other common base
            raise EngineError(f"the original graph does not run: {one_line(error, 300)}") from error
        return found

    def _feeds(
        self, tokens: Sequence[int], past: int, caches: Iterable[Pair] | None
    ) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        arrays: Mapping[str, npt.NDArray[Any]] = {
            TOKENS: np.array([tokens]),
            ATTENDED: np.ones((1, past + len(tokens)), np.int64),
            POSITIONS: np.arange(past, past + len(tokens))[None],
            **{name: np.array(number) for name, number in WANTED.items()},
        }
        for name, array in arrays.items():
            if name in self.dtypes:
                yield name, array.astype(INTEGERS[self.dtypes[name]])
        given = iter(caches) if caches is not None else None
        for site in self._sites:
            shapes = [(1, site.kv_heads, past, dim) for dim in (site.key_dim, site.value_dim)]
            pair = next(given) if given is not None else [np.zeros(shape, np.float32) for shape in shapes]
            for value, array in zip((site.cache.past_key, site.cache.past_value), pair, strict=True):
                yield str(value.name), array.astype(FLOATS[self.dtypes[str(value.name)]])

    def _session(self, names: tuple[str, ...]) -> Any:
        if names not in self._sessions:
            onnxruntime = load("onnxruntime")
            model = type(self._model)()
            model.CopyFrom(self._model)
            del model.graph.output[:]
            for name in names:
                model.graph.output.add().name = name
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4  # errors are raised
            options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(self._folder))
            try:
                self._sessions = {
                    names: onnxruntime.InferenceSession(
                        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
                    )
                }  # one at a time: each has the weights that it needs
            except Exception as error:
                raise SourceError(f"ONNX Runtime cannot open it: {one_line(error, 300)}") from error
        return self._sessions[names]
