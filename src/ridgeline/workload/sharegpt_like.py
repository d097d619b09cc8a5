"""A trace with the length statistics of ShareGPT conversations, drawn, not taken from them."""

from __future__ import annotations

from random import Random

from ridgeline.errors import ConfigError
from ridgeline.workload.arrivals import poisson_arrivals
from ridgeline.workload.lengths import LogNormalLengths
from ridgeline.workload.request_trace import TraceRequest

# Means: Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention" (2023), figure 11.
# The shapes, and the cuts that keep prompt + output ≤ 2,048, are ours: the paper gives the histogram only as
# a picture.
PROMPT_LENGTHS = LogNormalLengths(mean=161.31, sigma=1.1, maximum=512)
OUTPUT_LENGTHS = LogNormalLengths(mean=337.99, sigma=1.0, maximum=1536)


def sharegpt_like_trace(num_prompts: int, *, request_rate: float, seed: int) -> list[TraceRequest]:
    """`num_prompts` requests: log-normal lengths, Poisson arrivals; equal seeds give equal traces.

    Raises:
        ConfigError: `num_prompts` below 1, or a rate that is not > 0.
    """
    if num_prompts < 1:
        raise ConfigError("num_prompts", num_prompts, "must be ≥ 1")
    rng = Random(seed)
    prompts = PROMPT_LENGTHS.draw(num_prompts, rng)
    outputs = OUTPUT_LENGTHS.draw(num_prompts, rng)
    arrivals = poisson_arrivals(num_prompts, request_rate, rng)
    return [TraceRequest(*values) for values in zip(arrivals, prompts, outputs, strict=True)]
