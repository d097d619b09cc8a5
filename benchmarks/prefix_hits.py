"""TTFT of requests that share a long beginning, cold and found in the prefix cache.

    python benchmarks/prefix_hits.py [MODEL]

Each request is the shared tokens and 16 of its own; every cold one follows a reset of the cache.
"""

from __future__ import annotations

import statistics
import sys

from ridgeline import LLM, SamplingParams

REPEATS = 5


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    one_token = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with LLM(model, kv_cache_bytes=2**29) as llm:
        for num_shared in (256, 1000, 4000):
            shared = [1000 + (i * 7919) % 40000 for i in range(num_shared)]
            cold, hit, cached = [], [], 0
            for index in range(REPEATS):
                own = [2000 + index * 16 + i for i in range(16)]
                llm.reset_prefix_cache()
                (first,) = llm.generate({"prompt_token_ids": shared + own}, one_token)
                own = [3000 + index * 16 + i for i in range(16)]
                (second,) = llm.generate({"prompt_token_ids": shared + own}, one_token)
                cold.append(first.metrics.ttft_s)
                hit.append(second.metrics.ttft_s)
                cached = second.metrics.num_cached_tokens
            cold_ms, hit_ms = statistics.median(cold) * 1e3, statistics.median(hit) * 1e3
            print(
                f"{num_shared:5} shared tokens ({cached} found): TTFT {cold_ms:7.1f} ms cold, "
                f"{hit_ms:6.1f} ms on a hit, {cold_ms / hit_ms:5.1f} ×"
            )


if __name__ == "__main__":
    main()
