"""`bench engine`: offline speeds of one model on this machine, under keys that other engines share."""

from __future__ import annotations

import hashlib
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline import __version__
from ridgeline.bench.cpu_share import others_share, read_cpu
from ridgeline.core.events import StepFinished
from ridgeline.errors import ConfigError
from ridgeline.llm import LLM
from ridgeline.outputs import RequestOutput
from ridgeline.sampling_params import SamplingParams

DEFAULT_KEYS = (
    "load_s",
    "prefill_512_tok_s",
    "prefill_2048_tok_s",
    "decode_b1_tok_s",
    "decode_b1_depth1024_tok_s",
    "decode_b1_depth4096_tok_s",
    "decode_b8_tok_s",
    "decode_b32_tok_s",
    "e2e_b32_128in_64out_out_tok_s",
)
_NUM_DECODE_STEPS = 64
_NUM_FIRST_IDS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a key: its value and the first ids that sequence 0 gave."""

    value: float
    first_ids: list[int]


def run_benchmark(
    new_llm: Callable[[], LLM], *, keys: Sequence[str], repeats: int, report: Callable[[str], None]
) -> dict[str, object]:
    """Measure `keys` one after another; `report` gets a line per key.

    Each key holds median, min, max, runs and `others_cpu`, the share of the machine's CPU time that
    other processes took meanwhile.

    Raises:
        ConfigError: a key is not one of the known shapes.
    """
    measures = {key: _measure_for(key) for key in keys}
    document: dict[str, object] = {}
    first_ids: dict[str, list[int]] = {}
    with new_llm() as llm:
        document.update(_description(llm), repeats=repeats)
        for key, measure in measures.items():
            before = read_cpu()
            samples = [measure(llm, new_llm) for _ in range(repeats)]
            others_cpu = others_share(before, read_cpu())
            values = [sample.value for sample in samples]
            document[key] = {
                "median": float(np.median(values)),
                "min": min(values),
                "max": max(values),
                "runs": values,
                "others_cpu": others_cpu,
            }
            first_ids[key] = samples[0].first_ids
            report(
                f"{key:32} {np.median(values):9.3g}  [{min(values):.3g} … {max(values):.3g}]"
                f"  others {others_cpu:.1%}"
            )
    document["first_ids"] = first_ids
    return document


Measure = Callable[[LLM, Callable[[], LLM]], Sample]


def _measure_for(key: str) -> Measure:
    if key == "load_s":
        return lambda _, new_llm: _load(new_llm)
    if match := re.fullmatch(r"prefill_([1-9]\d*)_tok_s", key):
        num_tokens = int(match[1])
        return lambda llm, _: _prefill(llm, num_tokens)
    if match := re.fullmatch(r"decode_b([1-9]\d*)(?:_depth([1-9]\d*))?_tok_s", key):
        num_seqs = int(match[1])
        depth = int(match[2] or (1 if num_seqs == 1 else 128))
        return lambda llm, _: _decode(llm, num_seqs, depth)
    if match := re.fullmatch(r"e2e_b([1-9]\d*)_([1-9]\d*)in_([1-9]\d*)out_out_tok_s", key):
        num_seqs, num_in, num_out = (int(group) for group in match.groups())
        return lambda llm, _: _end_to_end(llm, num_seqs, num_in, num_out)
    raise ConfigError(
        "only", key, f"known are {', '.join(DEFAULT_KEYS)}, with any numbers ≥ 1 in place of theirs"
    )


def _prompt(sequence: int, num_tokens: int, vocab_size: int) -> dict[str, list[int]]:
    """Ids that no text, tokenizer or shared prefix explains; the same for every engine measured."""
    ids = [1000 + (i * 7919 + sequence * 104729) % 40000 for i in range(num_tokens)]
    return {"prompt_token_ids": [token_id % vocab_size for token_id in ids]}


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def _generate(llm: LLM, num_seqs: int, num_in: int, num_out: int) -> tuple[list[RequestOutput], float]:
    vocab_size = llm.parts.model.vocab_size
    prompts = [_prompt(sequence, num_in, vocab_size) for sequence in range(num_seqs)]
    started_at_s = time.perf_counter()
    outputs = llm.generate(prompts, _greedy(num_out), progress=False)
    return outputs, time.perf_counter() - started_at_s


def _first_ids(outputs: list[RequestOutput]) -> list[int]:
    return outputs[0].outputs[0].token_ids[:_NUM_FIRST_IDS]


def _load(new_llm: Callable[[], LLM]) -> Sample:
    started_at_s = time.perf_counter()
    with new_llm() as llm:
        outputs, _ = _generate(llm, 1, 16, 1)
        return Sample(time.perf_counter() - started_at_s, _first_ids(outputs))


def _prefill(llm: LLM, num_tokens: int) -> Sample:
    outputs, seconds = _generate(llm, 1, num_tokens, 1)
    return Sample(num_tokens / seconds, _first_ids(outputs))


def _decode(llm: LLM, num_seqs: int, depth: int) -> Sample:
    """64 steps in which every sequence decodes one token, taken from the engine's own record."""
    num_steps_before = len(_steps(llm))
    ramp = -(-num_seqs * depth // llm.parts.config.scheduler.max_num_batched_tokens)
    outputs, _ = _generate(llm, num_seqs, depth, _NUM_DECODE_STEPS + ramp + 2)
    steps = _steps(llm)[num_steps_before:]
    full = [all(n == 1 for *_, n in s.composition) and len(s.composition) == num_seqs for s in steps]
    # Step 0 is a prefill even when the prompt is one token long; two more warm up.
    first = next(i for i in range(1, len(full)) if all(full[i : i + _NUM_DECODE_STEPS]))
    seconds = steps[first + _NUM_DECODE_STEPS - 1].at_s - steps[first - 1].at_s
    return Sample(num_seqs * _NUM_DECODE_STEPS / seconds, _first_ids(outputs))


def _steps(llm: LLM) -> list[StepFinished]:
    return [event for event in llm.parts.event_log.events() if isinstance(event, StepFinished)]


def _end_to_end(llm: LLM, num_seqs: int, num_in: int, num_out: int) -> Sample:
    outputs, seconds = _generate(llm, num_seqs, num_in, num_out)
    return Sample(num_seqs * num_out / seconds, _first_ids(outputs))


def _description(llm: LLM) -> dict[str, object]:
    parts = llm.parts
    return {
        "engine": "ridgeline",
        "version": __version__,
        "model": parts.model_path.name,
        "model_sha256": hashlib.sha256(parts.model_path.read_bytes()).hexdigest(),
        "format": parts.weights_format,
        "threads": parts.num_threads,
        "settings": {
            "executor": parts.config.executor,
            "block_size": parts.limits.block_size,
            "max_model_len": parts.limits.max_model_len,
            "max_num_batched_tokens": parts.config.scheduler.max_num_batched_tokens,
        },
        "cpu": _cpu_name(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
