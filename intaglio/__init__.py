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
    from intaglio.bundle.bundle import Bundle as Bundle
    from intaglio.bundle.bundle import Manifest as Manifest
    from intaglio.bundle.inspection import Inspected as Inspected
    from intaglio.bundle.inspection import inspect as inspect
    from intaglio.compression import Compressed as Compressed
    from intaglio.compression import compress as compress
    from intaglio.errors import BuildError as BuildError
    from intaglio.errors import BundleError as BundleError
    from intaglio.errors import BusyError as BusyError
    from intaglio.errors import ContextLengthError as ContextLengthError
    from intaglio.errors import EngineError as EngineError
    from intaglio.errors import GraphError as GraphError
    from intaglio.errors import IntaglioError as IntaglioError
    from intaglio.errors import MissingExtraError as MissingExtraError
    from intaglio.errors import SourceError as SourceError
    from intaglio.errors import StorageError as StorageError
    from intaglio.errors import UsageError as UsageError
    from intaglio.errors import WorkerError as WorkerError
    from intaglio.exporters.checkpoints.converted import Converted as Converted
    from intaglio.exporters.convert_checkpoint import convert as convert
    from intaglio.exporters.export_model import Exported as Exported
    from intaglio.exporters.export_model import export as export
    from intaglio.exporters.known_models import KnownModels as KnownModels
    from intaglio.exporters.known_models import models as models
    from intaglio.files.atomic import atomic_directory as atomic_directory
    from intaglio.files.atomic import check_output_directory as check_output_directory
    from intaglio.graph_passes.recipes.listing import ListedRecipes as ListedRecipes
    from intaglio.graph_passes.recipes.listing import recipes as recipes
    from intaglio.plugins.micro_kernels.tune import Tuning as Tuning
    from intaglio.plugins.micro_kernels.tune import tune as tune
    from intaglio.runtime.agents.answer import agent as agent
    from intaglio.runtime.agents.answer import answer as answer
    from intaglio.runtime.agents.answer import open_agent as open_agent
    from intaglio.runtime.agents.loops.agent import Agent as Agent
    from intaglio.runtime.agents.loops.agent import AgentLimits as AgentLimits
    from intaglio.runtime.agents.loops.agent import AgentResult as AgentResult
    from intaglio.runtime.agents.open_tools import open_tools as open_tools
    from intaglio.runtime.agents.reports.run_report import AgentRun as AgentRun
    from intaglio.runtime.agents.tools.from_function import tool as tool
    from intaglio.runtime.agents.tools.tool import Tool as Tool
    from intaglio.runtime.agents.tools.tool import ToolError as ToolError
    from intaglio.runtime.engines.build import build as build
    from intaglio.runtime.engines.build_request import Built as Built
    from intaglio.runtime.engines.engine import Engine as Engine
    from intaglio.runtime.engines.opening import open_engine as open_engine
    from intaglio.runtime.generation.beam_search import BeamText as BeamText
    from intaglio.runtime.generation.beam_search import beam_search as beam_search
    from intaglio.runtime.generation.generate import TextGenerator as TextGenerator
    from intaglio.runtime.generation.generate import generate as generate
    from intaglio.runtime.generation.requests.message import FunctionCall as FunctionCall
    from intaglio.runtime.generation.requests.message import Message as Message
    from intaglio.runtime.generation.requests.message import ToolCall as ToolCall
    from intaglio.runtime.generation.requests.request import GenerationRequest as GenerationRequest
    from intaglio.runtime.generation.scheduling.generated import Generated as Generated
    from intaglio.runtime.run_bundle import run as run
    from intaglio.runtime.sampling.beams import BeamOptions as BeamOptions
    from intaglio.runtime.sampling.grammar import Grammar as Grammar
    from intaglio.runtime.speech.recognizer import SpeechOptions as SpeechOptions
    from intaglio.runtime.speech.recognizer import SpeechRecognizer as SpeechRecognizer
    from intaglio.runtime.speech.recordings.run_recordings import Transcribed as Transcribed
    from intaglio.runtime.speech.recordings.run_recordings import TranscribedSegments as TranscribedSegments
    from intaglio.runtime.speech.transcript import Transcript as Transcript
    from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer as WhisperRecognizer
    from intaglio.runtime.speech.whisper_options import WhisperOptions as WhisperOptions
    from intaglio.runtime.text.similarities import Similarity as Similarity
    from intaglio.runtime.text.similarities import similarity as similarity
    from intaglio.runtime.text.tasks import Ran as Ran
    from intaglio.training.gradients.sensitivity import Sensitivity as Sensitivity
    from intaglio.training.gradients.sensitivity import sensitivity as sensitivity
    from intaglio.validation.bench.bench import bench as bench
    from intaglio.validation.bench.results import Bench as Bench
    from intaglio.validation.doctor.doctor import Doctor as Doctor
    from intaglio.validation.doctor.doctor import doctor as doctor
    from intaglio.validation.gpu_check.gpu_check import gpu_check as gpu_check
    from intaglio.validation.gpu_check.results import GpuCheck as GpuCheck
    from intaglio.validation.measures.text_quality import TextQuality as TextQuality
    from intaglio.validation.measures.text_quality import text_quality as text_quality
    from intaglio.validation.reports.results import Validated as Validated
    from intaglio.validation.roofline.roofline import Roofline as Roofline
    from intaglio.validation.roofline.roofline import roofline as roofline
    from intaglio.validation.tuning.tune_decoding import TunedDecoding as TunedDecoding
    from intaglio.validation.tuning.tune_decoding import tune_decoding as tune_decoding
    from intaglio.validation.validate_bundle import validate as validate

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

if not TYPE_CHECKING:  # a type checker reads the imports above, and would take any name for one of this module's
    __all__ = ["__version__", *_MODULES]
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """The names of this module, including the verbs."""
    return sorted({*globals(), *_MODULES})
