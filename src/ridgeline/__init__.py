"""ridgeline: an LLM inference engine for CPUs that explains its own performance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.errors import (
    ConfigError,
    DownloadError,
    EngineError,
    ModelFileError,
    ModelNotFoundError,
    RequestError,
    RidgelineError,
)
from ridgeline.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from ridgeline.async_llm import AsyncLLM
    from ridgeline.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "DownloadError",
    "EngineError",
    "FinishReason",
    "Logprob",
    "ModelFileError",
    "ModelNotFoundError",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "RidgelineError",
    "SamplingParams",
    "StructuredOutputs",
]


def __getattr__(name: str) -> object:
    """Load `LLM` and `AsyncLLM` when first asked for, so that `import ridgeline` loads no native code."""
    if name == "LLM":
        from ridgeline.llm import LLM

        return LLM
    if name == "AsyncLLM":
        from ridgeline.async_llm import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
