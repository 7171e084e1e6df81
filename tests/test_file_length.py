"""Files stay short: files of more than 300 lines are listed with a reason."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINES = 300
_CASES = "one subject, whose cases share their models and helpers"
_TABLE = "a table of cases, one entry after another"
_WHOLE = "an example or benchmark that is read and run as one file"
LONGER = {
    "plugins/integer_math.py": "the integer arithmetic of all operators, one function for each operation",
    "plugins/function_body.py": "one method for each operation of the reference",
    "runtime/sampling/grammar.py": "what a grammar is, and one function for each form that it is given in",
    "exporters/checkpoints/gguf/architectures.py": "a table, one architecture after another",
    "tests/conftest.py": "the fixtures that the stages share",
    **dict.fromkeys(
        [
            "benchmarks/agents/speed.py",
            "benchmarks/shared/contestants.py",
            "examples/planner/patterns.py",
            "examples/train_language_models.py",
            "examples/train_text_to_text.py",
        ],
        _WHOLE,
    ),
    **dict.fromkeys(
        [
            "tests/support/checkpoints/foreign_checkpoints.py",
            "tests/support/engines/operator_cases.py",
        ],
        _TABLE,
    ),
    **dict.fromkeys(
        [
            "tests/cli/test_agent.py",
            "tests/cli/test_generate.py",
            "tests/deploy/ray/test_served.py",
            "tests/deploy/triton/test_served.py",
            "tests/exporters/encoder_decoders/test_encoder_decoders.py",
            "tests/exporters/test_bad_input.py",
            "tests/exporters/test_export.py",
            "tests/graph_passes/integer/test_int8_qdq.py",
            "tests/graph_passes/calibration/test_calibrate.py",
            "tests/intaglio/bundle/test_bundle.py",
            "tests/intaglio/files/test_input_files.py",
            "tests/plugins/cuda/test_emulator.py",
            "tests/plugins/ort/test_hostile_nodes.py",
            "tests/runtime/adapters/test_side_path.py",
            "tests/runtime/agents/models/test_engine_model.py",
            "tests/runtime/agents/tools/test_caller.py",
            "tests/runtime/agents/test_mcp.py",
            "tests/runtime/agents/test_page.py",
            "tests/runtime/agents/plan/test_grammar.py",
            "tests/runtime/agents/models/test_server_model.py",
            "tests/runtime/agents/loops/test_call_scheduler.py",
            "tests/runtime/generation/test_generate.py",
            "tests/runtime/sampling/test_grammar.py",
            "tests/runtime/sessions/test_decoder.py",
            "tests/runtime/strategies/test_draft_tree.py",
            "tests/serve/test_agents.py",
            "tests/serve/workers/test_encoder_worker.py",
        ],
        _CASES,
    ),
}


def test_longer_files_are_listed_with_a_reason() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    lengths = {path: (ROOT / path).read_bytes().count(b"\n") for path in listed.stdout.split()}
    assert len(lengths) > 500
    longer = {path for path, lines in lengths.items() if lines > LINES}
    assert not longer - LONGER.keys(), "longer than 300 lines: look for a second subject, or list it with the reason"
    assert not LONGER.keys() - longer, "no longer needed: remove from the list"
