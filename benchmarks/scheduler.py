"""Cost of one scheduling step (schedule and update) without a model, in microseconds.

    python benchmarks/scheduler.py

Prints the cost at several numbers of running requests, a line fitted through them, and the cost at 32
running requests for pools of 10³…10⁶ blocks, fresh and with every block in the prefix cache.
"""

from __future__ import annotations

import gc
import statistics
import time

from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import EventRecorder
from ridgeline.core.kv_cache_manager import KVCacheManager
from ridgeline.core.prefix_cache import PrefixCache
from ridgeline.core.request import Request
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ModelRunnerOutput
from ridgeline.outputs import FinishReason
from ridgeline.sampling_params import SamplingParams

BLOCK_SIZE, NUM_STEPS, REPEATS = 32, 320, 5


class Bench:
    def __init__(self, num_blocks: int, num_seqs: int) -> None:
        self.recorder = EventRecorder()
        config = SchedulerConfig(max_num_seqs=num_seqs, max_num_batched_tokens=max(512, 2 * num_seqs))
        manager = KVCacheManager(
            BlockPool(num_blocks), BLOCK_SIZE, self.recorder, prefix_cache=PrefixCache(BLOCK_SIZE)
        )
        self.scheduler = Scheduler(config, manager, self.recorder)
        self.now, self.num_added = 0.0, 0

    def add(self, num_prompt_tokens: int, max_tokens: int) -> None:
        first = self.num_added * 7919
        request = Request(
            request_id=str(self.num_added),
            prompt_token_ids=[(first + i) % 49152 for i in range(num_prompt_tokens)],
            sampling_params=SamplingParams(max_tokens=max_tokens),
            arrived_at_s=self.now,
            seed=0,
            max_num_tokens=num_prompt_tokens + max_tokens,
        )
        self.num_added += 1
        self.scheduler.add_request(request, self.now)

    def step(self) -> float:
        """Seconds of one step's scheduling."""
        self.now += 0.01
        started = time.perf_counter()
        output = self.scheduler.schedule(self.now)
        scheduled = time.perf_counter() - started
        tokens = [7 if item.samples else None for item in output.scheduled]
        answer = ModelRunnerOutput(tokens, [None] * len(tokens), [()] * len(tokens))
        started = time.perf_counter()
        self.scheduler.update_from_output(output, answer, self.now)
        updated = time.perf_counter() - started
        self.recorder.take()
        return scheduled + updated

    def drain(self) -> None:
        for request_id in self.scheduler.request_ids():
            self.scheduler.finish_request(request_id, FinishReason.ABORT, self.now)


def decode_us(bench: Bench, num_seqs: int) -> float:
    """Mean of NUM_STEPS decode steps in a row (10 blocks a request are filled), best of REPEATS."""
    means = []
    for _ in range(REPEATS):
        for _ in range(num_seqs):
            bench.add(64, 2 * NUM_STEPS)
        while any(item.num_scheduled_tokens > 1 for item in bench.scheduler.schedule(bench.now).scheduled):
            bench.step()
        means.append(statistics.fmean(bench.step() for _ in range(NUM_STEPS)) * 1e6)
        bench.drain()
    return min(means)


def main() -> None:
    gc.freeze()
    print(f"decode steps, {BLOCK_SIZE}-token blocks, mean of {NUM_STEPS} steps, best of {REPEATS}")
    for num_seqs in (1, 8, 32, 64, 128, 256):
        cost = decode_us(Bench(64 * max(num_seqs, 8), num_seqs), num_seqs)
        print(f"{num_seqs:5} running: {cost:8.1f} µs a step   (limit {30 + 3 * num_seqs} µs)")
    print("32 running requests, by pool size")
    for num_blocks in (1_000, 10_000, 100_000, 1_000_000):
        bench = Bench(num_blocks, 32)
        fresh = decode_us(bench, 32)
        fill = min(num_blocks, 200_000)
        while bench.scheduler.occupancy.num_idle_blocks < fill - 100:
            bench.add(min(8000, (num_blocks - 8) * BLOCK_SIZE // 2), 1)
            while bench.scheduler.has_unfinished_requests:
                bench.step()
        cached = decode_us(bench, 32)
        print(f"{num_blocks:9,} blocks: {fresh:6.1f} µs a step; {fill:7,} of them cached: {cached:6.1f} µs")


if __name__ == "__main__":
    main()
