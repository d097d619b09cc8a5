"""One finished request, as a line for people and as JSON."""

from __future__ import annotations

import numpy as np

from ridgeline.build import EngineParts
from ridgeline.outputs import FinishReason, RequestMetrics, RequestOutput


def summary_line(metrics: RequestMetrics) -> str:
    """TTFT, prefill and decode speed; what is undefined is left out."""
    parts = []
    if metrics.ttft_s is not None:
        parts.append(f"TTFT {metrics.ttft_s * 1e3:.0f} ms")
    if metrics.prefill_s:
        prefill_tok_s = metrics.num_prompt_tokens / metrics.prefill_s
        parts.append(f"prefill {metrics.num_prompt_tokens} tokens at {prefill_tok_s:.0f} tok/s")
    if metrics.tpot_s:
        parts.append(f"decode {metrics.num_output_tokens} tokens at {1 / metrics.tpot_s:.0f} tok/s")
    return " · ".join(parts) or "no tokens"


def finish_line(output: RequestOutput) -> str:
    """The summary, and why the answer ended."""
    assert output.metrics is not None
    reason = output.outputs[0].finish_reason
    ended = "cut off: max_tokens or the context is reached" if reason == FinishReason.LENGTH else reason
    return f"{summary_line(output.metrics)} · {ended}"


def request_document(output: RequestOutput, parts: EngineParts) -> dict[str, object]:
    """Model, request and output under the keys that `explain --json` uses too."""
    metrics, completion, model = output.metrics, output.outputs[0], parts.model
    assert metrics is not None
    return {
        "model": {
            "name": parts.model_name,
            "arch": model.arch,
            "weights_bytes": parts.weights_bytes,
            "layers": model.num_layers,
            "hidden": model.hidden_size,
            "heads": model.num_heads,
            "kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "vocab": model.vocab_size,
        },
        "request": {
            "prompt_tokens": metrics.num_prompt_tokens,
            "completion_tokens": metrics.num_output_tokens,
            "cached_tokens": metrics.num_cached_tokens,
            "ttft_s": metrics.ttft_s,
            "tpot_s": metrics.tpot_s,
            "itl_p50_s": _percentile(metrics.itl_s, 50),
            "itl_p99_s": _percentile(metrics.itl_s, 99),
            "e2e_s": metrics.e2e_s,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        },
        "output": {"text": completion.text, "token_ids": completion.token_ids},
    }


def _percentile(values: list[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
