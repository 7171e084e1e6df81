"""Intaglio exports a transformer checkpoint to a compressed, validated engine, and runs it.

What users hold in their hands is here. A verb of the command line is a function with the same name and options:

    intaglio.export("./all-MiniLM-L6-v2", "minilm")
    intaglio.validate("minilm").passed
    [result.embedding for result in intaglio.run("minilm", ["A sentence to embed."])]

Beside them are the classes that they return, those that stay open (`TextGenerator`, `SpeechRecognizer`, `open_agent`),
and the errors. The verbs of `intaglio train` are functions of `intaglio.training`; `serve` and `chat` are programs.

This package holds the code that all stages share; the stages are `intaglio.exporters`, `intaglio.graph_passes`,
`intaglio.plugins`, `intaglio.runtime`, `intaglio.training` and `intaglio.validation`. Importing any stays light:
torch, ONNX Runtime and TensorRT are loaded when a function needs them, and a verb's stage on first use of the verb.
"""

from pathlib import Path

from intaglio.lazy_names import lazy_names
from intaglio.version import __version__

TYPE_CHECKING = False  # the module `typing` takes longer to import than all of this one
if TYPE_CHECKING:
    from intaglio.bundle.bundle import Bundle, Manifest
    from intaglio.bundle.inspection import Inspected, inspect
    from intaglio.compression import Compressed, compress
    from intaglio.errors import (
        BuildError,
        BundleError,
        BusyError,
        ContextLengthError,
        EngineError,
        GraphError,
        IntaglioError,
        MissingExtraError,
        SourceError,
        StorageError,
        UsageError,
        WorkerError,
    )
    from intaglio.exporters.checkpoints.converted import Converted
    from intaglio.exporters.convert_checkpoint import convert
    from intaglio.exporters.export_model import Exported, export
    from intaglio.exporters.known_models import KnownModels, models
    from intaglio.files.atomic import atomic_directory, check_output_directory
    from intaglio.graph_passes.recipes.listing import ListedRecipes, recipes
    from intaglio.plugins.micro_kernels.tune import Tuning, tune
    from intaglio.runtime.agents.answer import agent, answer, open_agent
    from intaglio.runtime.agents.loops.agent import Agent, AgentLimits, AgentResult
    from intaglio.runtime.agents.open_tools import open_tools
    from intaglio.runtime.agents.reports.run_report import AgentRun
    from intaglio.runtime.agents.tools.from_function import tool
    from intaglio.runtime.agents.tools.tool import Tool, ToolError
    from intaglio.runtime.engines.build import build
    from intaglio.runtime.engines.build_request import Built
    from intaglio.runtime.engines.engine import Engine
    from intaglio.runtime.engines.opening import open_engine
    from intaglio.runtime.generation.beam_search import BeamText, beam_search
    from intaglio.runtime.generation.generate import TextGenerator, generate
    from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall
    from intaglio.runtime.generation.requests.request import GenerationRequest
    from intaglio.runtime.generation.scheduling.generated import Generated
    from intaglio.runtime.run_bundle import run
    from intaglio.runtime.sampling.beams import BeamOptions
    from intaglio.runtime.sampling.grammar import Grammar
    from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer
    from intaglio.runtime.speech.recordings.run_recordings import Transcribed, TranscribedSegments
    from intaglio.runtime.speech.transcript import Transcript
    from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer
    from intaglio.runtime.speech.whisper_options import WhisperOptions
    from intaglio.runtime.text.similarities import Similarity, similarity
    from intaglio.runtime.text.tasks import Ran
    from intaglio.training.gradients.sensitivity import Sensitivity, sensitivity
    from intaglio.validation.bench.bench import bench
    from intaglio.validation.bench.results import Bench
    from intaglio.validation.doctor.doctor import Doctor, doctor
    from intaglio.validation.gpu_check.gpu_check import gpu_check
    from intaglio.validation.gpu_check.results import GpuCheck
    from intaglio.validation.measures.text_quality import TextQuality, text_quality
    from intaglio.validation.reports.results import Validated
    from intaglio.validation.roofline.roofline import Roofline, roofline
    from intaglio.validation.tuning.tune_decoding import TunedDecoding, tune_decoding
    from intaglio.validation.validate_bundle import validate

__all__ = [
    "Agent",
    "AgentLimits",
    "AgentResult",
    "AgentRun",
    "BeamOptions",
    "BeamText",
    "Bench",
    "BuildError",
    "Built",
    "Bundle",
    "BundleError",
    "BusyError",
    "Compressed",
    "ContextLengthError",
    "Converted",
    "Doctor",
    "Engine",
    "EngineError",
    "Exported",
    "FunctionCall",
    "Generated",
    "GenerationRequest",
    "GpuCheck",
    "Grammar",
    "GraphError",
    "Inspected",
    "IntaglioError",
    "KnownModels",
    "ListedRecipes",
    "Manifest",
    "Message",
    "MissingExtraError",
    "Ran",
    "Roofline",
    "Sensitivity",
    "Similarity",
    "SourceError",
    "SpeechOptions",
    "SpeechRecognizer",
    "StorageError",
    "TextGenerator",
    "TextQuality",
    "Tool",
    "ToolCall",
    "ToolError",
    "Transcribed",
    "TranscribedSegments",
    "Transcript",
    "TunedDecoding",
    "Tuning",
    "UsageError",
    "Validated",
    "WhisperOptions",
    "WhisperRecognizer",
    "WorkerError",
    "__version__",
    "agent",
    "answer",
    "atomic_directory",
    "beam_search",
    "bench",
    "build",
    "check_output_directory",
    "compress",
    "convert",
    "doctor",
    "export",
    "generate",
    "gpu_check",
    "inspect",
    "models",
    "open_agent",
    "open_engine",
    "open_tools",
    "recipes",
    "roofline",
    "run",
    "sensitivity",
    "similarity",
    "text_quality",
    "tool",
    "tune",
    "tune_decoding",
    "validate",
]

# Name -> the module that has it, as above.
_MODULES = {
    name: module
    for module, names in {
        "intaglio.bundle.bundle": "Bundle Manifest",
        "intaglio.bundle.inspection": "Inspected inspect",
        "intaglio.compression": "Compressed compress",
        "intaglio.errors": (
            "BuildError BundleError BusyError ContextLengthError EngineError GraphError IntaglioError "
            "MissingExtraError SourceError StorageError UsageError WorkerError"
        ),
        "intaglio.exporters.checkpoints.converted": "Converted",
        "intaglio.exporters.convert_checkpoint": "convert",
        "intaglio.exporters.export_model": "Exported export",
        "intaglio.exporters.known_models": "KnownModels models",
        "intaglio.files.atomic": "atomic_directory check_output_directory",
        "intaglio.graph_passes.recipes.listing": "ListedRecipes recipes",
        "intaglio.plugins.micro_kernels.tune": "Tuning tune",
        "intaglio.runtime.agents.answer": "agent answer open_agent",
        "intaglio.runtime.agents.loops.agent": "Agent AgentLimits AgentResult",
        "intaglio.runtime.agents.open_tools": "open_tools",
        "intaglio.runtime.agents.reports.run_report": "AgentRun",
        "intaglio.runtime.agents.tools.from_function": "tool",
        "intaglio.runtime.agents.tools.tool": "Tool ToolError",
        "intaglio.runtime.engines.build": "build",
        "intaglio.runtime.engines.build_request": "Built",
        "intaglio.runtime.engines.engine": "Engine",
        "intaglio.runtime.engines.opening": "open_engine",
        "intaglio.runtime.generation.beam_search": "BeamText beam_search",
        "intaglio.runtime.generation.generate": "TextGenerator generate",
        "intaglio.runtime.generation.requests.message": "FunctionCall Message ToolCall",
        "intaglio.runtime.generation.requests.request": "GenerationRequest",
        "intaglio.runtime.generation.scheduling.generated": "Generated",
        "intaglio.runtime.run_bundle": "run",
        "intaglio.runtime.sampling.beams": "BeamOptions",
        "intaglio.runtime.sampling.grammar": "Grammar",
        "intaglio.runtime.speech.recognizer": "SpeechOptions SpeechRecognizer",
        "intaglio.runtime.speech.recordings.run_recordings": "Transcribed TranscribedSegments",
        "intaglio.runtime.speech.whisper.recognizer": "WhisperRecognizer",
        "intaglio.runtime.speech.whisper_options": "WhisperOptions",
        "intaglio.runtime.speech.transcript": "Transcript",
        "intaglio.runtime.text.tasks": "Ran",
        "intaglio.runtime.text.similarities": "Similarity similarity",
        "intaglio.training.gradients.sensitivity": "Sensitivity sensitivity",
        "intaglio.validation.bench.bench": "bench",
        "intaglio.validation.bench.results": "Bench",
        "intaglio.validation.doctor.doctor": "Doctor doctor",
        "intaglio.validation.gpu_check.gpu_check": "gpu_check",
        "intaglio.validation.gpu_check.results": "GpuCheck",
        "intaglio.validation.measures.text_quality": "TextQuality text_quality",
        "intaglio.validation.reports.results": "Validated",
        "intaglio.validation.roofline.roofline": "Roofline roofline",
        "intaglio.validation.tuning.tune_decoding": "TunedDecoding tune_decoding",
        "intaglio.validation.validate_bundle": "validate",
    }.items()
    for name in names.split()
}

# In a checkout the stages are next to this folder. Python started there finds this folder before the installed
# package, and would not find them without this.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "exporters").is_dir():
    __path__.append(str(_checkout))

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """The names of this module, including the verbs."""
    return sorted({*globals(), *_MODULES})
