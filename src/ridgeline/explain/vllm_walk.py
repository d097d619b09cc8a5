"""How vLLM runs each step of the same path, for one named version.

Facts read in that version's package; `benchmarks/check_vllm_walk.py` finds every path and symbol in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VLLM_VERSION = "0.32.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmStep:
    """`where`: process and thread; `sources`: (path in the package, symbol), the entry point first."""

    step: str
    where: str
    how: str
    sources: Sequence[tuple[str, str]]

    @property
    def text(self) -> str:
        """One paragraph."""
        symbols = ", ".join(f"{path}: {symbol}" for path, symbol in self.sources)
        return f"{self.where}. {self.how} ({symbols})"


_STEPS = (
    VllmStep(
        step="tokenize",
        where="API server process, a thread beside the event loop (more by --renderer-num-workers)",
        how="The renderer fills the chat template and calls the tokenizer off the event loop, so that a long "
        "prompt does not stall other streams; the ids then pass the input processor's checks.",
        sources=(
            ("vllm/renderers/base.py", "BaseRenderer.render_prompts_async"),
            ("vllm/renderers/base.py", "BaseRenderer._tokenize_prompt"),
            ("vllm/v1/engine/input_processor.py", "InputProcessor.process_inputs"),
        ),
    ),
    VllmStep(
        step="queue",
        where="API server process → ZeroMQ socket → engine core process, a reader thread there",
        how="The request is encoded with msgpack and sent to the engine core, whose reader thread puts it "
        "into a queue; the busy loop drains that between steps into the scheduler's waiting queue. It waits "
        "while the step's token budget, the number of running sequences or the KV blocks are used up.",
        sources=(
            ("vllm/v1/engine/async_llm.py", "AsyncLLM.add_request"),
            ("vllm/v1/engine/core.py", "EngineCoreProc.process_input_sockets"),
            ("vllm/v1/engine/core.py", "EngineCoreProc.run_busy_loop"),
            ("vllm/v1/core/sched/scheduler.py", "Scheduler.add_request"),
        ),
    ),
    VllmStep(
        step="prefill",
        where="engine core process schedules; its worker computes: in that process on one GPU, in one of its "
        "own on a CPU, in one for each rank with tensor parallelism",
        how="The scheduler gives tokens to running requests first, then to waiting ones, up to "
        "max_num_batched_tokens: prompts are cut into chunks and share a step with decodes. By default the "
        "next step is scheduled while this one runs. torch.compile makes the model's kernels. "
        "Attention over paged blocks is a kernel between the compiled pieces: FlashAttention on NVIDIA GPUs, "
        "FlashInfer on those of compute capability 10, a kernel for AMX, AVX or NEON on a CPU.",
        sources=(
            ("vllm/v1/core/sched/scheduler.py", "Scheduler.schedule"),
            ("vllm/v1/engine/core.py", "EngineCore.step_with_batch_queue"),
            ("vllm/v1/core/kv_cache_manager.py", "KVCacheManager.allocate_slots"),
            ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.execute_model"),
            ("vllm/model_executor/models/llama.py", "LlamaDecoderLayer.forward"),
            ("vllm/v1/attention/backends/flash_attn.py", "FlashAttentionImpl.forward"),
            ("vllm/v1/attention/backends/cpu_attn.py", "CPUAttentionBackendImpl.forward"),
        ),
    ),
    VllmStep(
        step="decode",
        where="the same processes; every running sequence adds one token to the step",
        how="One step decodes a token for all running sequences together, so that weights are read once for "
        "all. On a GPU a forward pass of decodes alone is replayed as one CUDA graph, captured for a set of "
        "batch sizes to which a batch is padded; with a prompt in the step the graph is in pieces around "
        "attention. On a CPU there are no graphs. K and V lie in blocks that block tables name.",
        sources=(
            ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.prepare_inputs"),
            ("vllm/v1/worker/gpu/cudagraph_utils.py", "ModelCudaGraphManager"),
            ("vllm/config/compilation.py", "CUDAGraphMode"),
            ("vllm/v1/worker/cpu/model_runner.py", "CPUModelRunner"),
            ("vllm/v1/core/sched/scheduler.py", "Scheduler.update_from_output"),
        ),
    ),
    VllmStep(
        step="sample",
        where="worker, on the device, in the same step",
        how="Logits are made for the rows that need them; logit bias, penalties, temperature, min-p, "
        "top-k and top-p are applied to all rows at once. Greedy rows take the largest logit, random ones "
        "the largest after Gumbel noise (FlashInfer draws where a batch has only top-k or top-p rows "
        "without seeds). The ids are copied to the host on a stream of their own while the next step is "
        "prepared.",
        sources=(
            ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.sample_tokens"),
            ("vllm/v1/worker/gpu/sample/sampler.py", "Sampler.sample"),
            ("vllm/v1/worker/gpu/sample/gumbel.py", "gumbel_sample"),
            ("vllm/model_executor/layers/logits_processor.py", "LogitsProcessor.forward"),
        ),
    ),
    VllmStep(
        step="detokenize",
        where="engine core process → ZeroMQ socket → API server process, one task of the event loop",
        how="Token ids of a step travel together; one loop in the API server decodes them request by "
        "request, looks for stop strings (and aborts in the engine what they end) and hands text to each "
        "stream, pausing between slices of the batch to let other work on the event loop run.",
        sources=(
            ("vllm/v1/engine/core.py", "EngineCoreProc.process_output_sockets"),
            ("vllm/v1/engine/async_llm.py", "AsyncLLM._run_output_handler"),
            ("vllm/v1/engine/output_processor.py", "OutputProcessor.process_outputs"),
            ("vllm/v1/engine/detokenizer.py", "FastIncrementalDetokenizer.decode_next"),
            ("vllm/v1/engine/detokenizer.py", "check_stop_strings"),
        ),
    ),
    VllmStep(
        step="unaccounted",
        where="between the processes",
        how="What no metric of its own covers: sockets, msgpack, the event loop's turns and HTTP. It shows "
        "as end-to-end time seen by a client less vllm:e2e_request_latency_seconds.",
        sources=(
            ("vllm/v1/engine/core_client.py", "AsyncMPClient"),
            ("vllm/v1/serial_utils.py", "MsgpackEncoder"),
            ("vllm/v1/metrics/loggers.py", "PrometheusStatLogger"),
        ),
    ),
)

VLLM_WALK: Mapping[str, VllmStep] = {each.step: each for each in _STEPS}
"""By step of our path."""


def walk_document() -> dict[str, object]:
    """The walk as JSON has it."""
    return {
        "version": VLLM_VERSION,
        "steps": [
            {
                "step": each.step,
                "where": each.where,
                "how": each.how,
                "sources": [{"path": path, "symbol": symbol} for path, symbol in each.sources],
            }
            for each in _STEPS
        ],
    }
