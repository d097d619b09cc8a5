"""`bench engine`: offline speeds of one model on this machine, under keys that other engines share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from ridgeline.bench.ceilings import (
    Ceilings,
    ModelWork,
    fractions,
    kernel_peak,
    model_work,
    read_bandwidth,
    work_of,
)
from ridgeline.bench.cpu_share import others_share, read_cpu
from ridgeline.bench.description import describe
from ridgeline.bench.keys import NUM_DECODE_STEPS, Kind, Workload, parse_key, prompt_ids
from ridgeline.bench.peers import Peer, best_ratio, measure_peer, ratio, same_file_ratio
from ridgeline.config.machine import throttled_periods, throttled_since
from ridgeline.core.events import StepFinished
from ridgeline.llm import LLM
from ridgeline.outputs import RequestOutput
from ridgeline.sampling_params import SamplingParams

_NUM_FIRST_IDS = 8
_PEAK_PROMPT_TOKENS = 512

NewLLM = Callable[[], LLM]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a key: its value, the first ids that sequence 0 gave, and the engine's steps."""

    value: float
    first_ids: list[int]
    steps: Sequence[StepFinished] = ()


@dataclass(slots=True)
class KeyRuns:
    """All samples of one key: of ours, and one of each peer for each entry of `round_medians`."""

    workload: Workload
    samples: list[Sample] = field(default_factory=list)
    round_medians: list[float] = field(default_factory=list)
    others_cpu: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=dict)
    peers_others_cpu: dict[str, list[float]] = field(default_factory=dict)


def run_benchmark(
    new_llm: NewLLM,
    *,
    keys: Sequence[str],
    repeats: int,
    report: Report,
    peers: Sequence[Peer] = (),
    rounds: int = 1,
) -> dict[str, object]:
    """Measure `keys` one after another, at least `repeats` samples each; `report` gets a line per key.

    Each key holds median, min, max, runs, `others_cpu` (the share of the machine's CPU time that other
    processes took meanwhile), the Python's share of a step, and fractions of the machine's ceilings. Samples
    are shared out over `rounds`; each round ends with one sample of each of the `peers`, on the same file.
    `throttled_periods` > 0 marks a run that a CPU quota stopped so many times.

    Raises:
        ConfigError: a key is not one of the known shapes, or a peer can't be run.
    """
    workloads = [parse_key(key) for key in keys]
    throttled_before = throttled_periods()
    document: dict[str, object] = {}
    first_ids: dict[str, list[int]] = {}
    peer_documents: dict[str, dict[str, object]] = {peer.name: {} for peer in peers}
    with new_llm() as llm:
        work, ceilings = _ceilings(llm)
        document.update(
            describe(llm), repeats=repeats, rounds=rounds, ceilings=_ceilings_document(work, ceilings)
        )
        for workload in workloads:
            runs = KeyRuns(workload)
            for _ in range(rounds):
                _measure_ours(runs, -(-repeats // rounds), llm, new_llm)
                for peer in peers:
                    _measure_peer(runs, peer, peer_documents[peer.name], llm)
            figures = _figures(runs, llm, work, ceilings)
            document[workload.key] = figures
            first_ids[workload.key] = runs.samples[0].first_ids
            report(_line(workload.key, figures))
            for name, values in runs.peers.items():
                peer_documents[name][workload.key] = _summary(values, runs.peers_others_cpu[name])
                report(_line(f"  {name}", _summary(values, runs.peers_others_cpu[name])))
            if runs.peers:
                _set_ratios(document, runs)
    document["first_ids"] = first_ids
    document["throttled_periods"] = throttled_since(throttled_before)
    if peers:
        document["peers"] = peer_documents
    return document


def _measure_ours(runs: KeyRuns, num_samples: int, llm: LLM, new_llm: NewLLM) -> None:
    before = read_cpu()
    samples = [_sample(runs.workload, llm, new_llm) for _ in range(num_samples)]
    runs.others_cpu.append(others_share(before, read_cpu()))
    runs.samples += samples
    runs.round_medians.append(median(sample.value for sample in samples))


def _measure_peer(runs: KeyRuns, peer: Peer, document: dict[str, object], llm: LLM) -> None:
    key = runs.workload.key
    if not peer.measures(key):
        return
    measured = measure_peer(peer, key, model_path=llm.parts.model_path, num_threads=llm.parts.num_threads)
    document.update(measured.description)
    runs.peers.setdefault(peer.name, []).append(measured.value)
    runs.peers_others_cpu.setdefault(peer.name, []).append(measured.others_cpu)


def _set_ratios(document: dict[str, object], runs: KeyRuns) -> None:
    ours = runs.round_medians
    less_is_better = runs.workload.is_seconds
    ratios = document.setdefault("ratios", {})
    assert isinstance(ratios, dict)
    ratios[runs.workload.key] = {
        "same_file": same_file_ratio(ours, runs.peers, less_is_better=less_is_better),
        "best": best_ratio(ours, runs.peers, less_is_better=less_is_better),
        "each": {
            name: ratio(ours, values, less_is_better=less_is_better) for name, values in runs.peers.items()
        },
    }


def _summary(values: Sequence[float], others_cpu: Sequence[float]) -> dict[str, object]:
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "runs": list(values),
        "others_cpu": max(others_cpu),
    }


def _figures(runs: KeyRuns, llm: LLM, work: ModelWork, ceilings: Ceilings) -> dict[str, object]:
    values = [sample.value for sample in runs.samples]
    figures = _summary(values, runs.others_cpu)
    overheads = [overhead for sample in runs.samples for overhead in step_overheads(sample.steps)]
    if overheads:
        figures["step_overhead_s"] = median(seconds for seconds, _ in overheads)
        figures["step_overhead_share"] = median(share for _, share in overheads)
    budget = llm.parts.config.scheduler.max_num_batched_tokens
    asked = work_of(runs.workload, work, max_num_batched_tokens=budget)
    if asked is not None:
        figures.update(fractions(asked, ceilings, seconds=runs.workload.num_units / median(values)))
    return figures


def step_overheads(steps: Sequence[StepFinished]) -> list[tuple[float, float]]:
    """Seconds between the ends of neighbouring steps that no native op took, and their share of them."""
    overheads = []
    for before, step in pairwise(steps):
        wall_s = step.at_s - before.at_s
        seconds = wall_s - sum(step.op_seconds.values())
        overheads.append((seconds, seconds / wall_s if wall_s > 0 else 0.0))
    return overheads


def _line(name: str, figures: dict[str, object]) -> str:
    line = (
        f"{name:32} {figures['median']:9.4g}  [{figures['min']:.4g} … {figures['max']:.4g}]"
        f"  others {figures['others_cpu']:.1%}"
    )
    for label, key in (
        ("overhead", "step_overhead_share"),
        ("bandwidth", "of_read_bandwidth"),
        ("kernel", "of_kernel_peak"),
    ):
        if isinstance(figures.get(key), float):
            line += f"  {label} {figures[key]:.1%}"
    return line


def _ceilings(llm: LLM) -> tuple[ModelWork, Ceilings]:
    parts = llm.parts
    kv_bytes = parts.kv_block_bytes / parts.limits.block_size
    work = model_work(parts.model_path, parts.model, kv_bytes=kv_bytes)
    num_tokens = min(_PEAK_PROMPT_TOKENS, parts.limits.max_model_len - 1)
    peaks = []
    for _ in range(3):
        last_step_id = _last_step_id(llm)
        _generate(llm, 1, num_tokens, 1)
        peaks += [kernel_peak(step, work) for step in _steps_since(llm, last_step_id)]
    known = [peak for peak in peaks if peak is not None]
    return work, Ceilings(read_bandwidth(parts.num_threads), max(known, default=None))


def _ceilings_document(work: ModelWork, ceilings: Ceilings) -> dict[str, object]:
    return {
        "read_bandwidth_bytes_s": ceilings.read_bytes_s,
        "kernel_peak_macs_s": ceilings.kernel_macs_s,
        "step_bytes": work.step_bytes,
        "token_macs": work.token_macs + work.head_macs,
    }


# ---- samples ---------------------------------------------------------------------------------------------


def _sample(workload: Workload, llm: LLM, new_llm: NewLLM) -> Sample:
    if workload.kind is Kind.LOAD:
        return _load(workload, new_llm)
    if workload.kind is Kind.DECODE:
        return _decode(workload, llm)
    last_step_id = _last_step_id(llm)
    outputs, seconds = _generate(llm, workload.num_seqs, workload.num_in, workload.num_out)
    steps = _steps_since(llm, last_step_id)
    return Sample(workload.num_units / seconds, _first_ids(outputs), steps)


def _load(workload: Workload, new_llm: NewLLM) -> Sample:
    started_at_s = time.perf_counter()
    with new_llm() as llm:
        outputs, _ = _generate(llm, 1, workload.num_in, 1)
        return Sample(time.perf_counter() - started_at_s, _first_ids(outputs))


def _decode(workload: Workload, llm: LLM) -> Sample:
    """64 steps in which every sequence decodes one token, taken from the engine's own record."""
    num_seqs, depth = workload.num_seqs, workload.num_in
    last_step_id = _last_step_id(llm)
    ramp = -(-num_seqs * depth // llm.parts.config.scheduler.max_num_batched_tokens)
    outputs, _ = _generate(llm, num_seqs, depth, NUM_DECODE_STEPS + ramp + 2)
    steps = _steps_since(llm, last_step_id)
    full = [all(n == 1 for *_, n in s.composition) and len(s.composition) == num_seqs for s in steps]
    # Step 0 is a prefill even when the prompt is one token long; two more warm up.
    first = next(i for i in range(1, len(full)) if all(full[i : i + NUM_DECODE_STEPS]))
    timed = steps[first - 1 : first + NUM_DECODE_STEPS]
    return Sample(workload.num_units / (timed[-1].at_s - timed[0].at_s), _first_ids(outputs), timed)


def _generate(llm: LLM, num_seqs: int, num_in: int, num_out: int) -> tuple[list[RequestOutput], float]:
    vocab_size = llm.parts.model.vocab_size
    prompts = [{"prompt_token_ids": prompt_ids(s, num_in, vocab_size)} for s in range(num_seqs)]
    params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True)
    llm.reset_prefix_cache()
    started_at_s = time.perf_counter()
    outputs = llm.generate(prompts, params, progress=False)
    return outputs, time.perf_counter() - started_at_s


def _first_ids(outputs: list[RequestOutput]) -> list[int]:
    return outputs[0].outputs[0].token_ids[:_NUM_FIRST_IDS]


def _last_step_id(llm: LLM) -> int:
    steps = _steps_since(llm, -1)
    return steps[-1].step_id if steps else -1


def _steps_since(llm: LLM, step_id: int) -> list[StepFinished]:
    events = llm.parts.event_log.events()
    return [event for event in events if isinstance(event, StepFinished) and event.step_id > step_id]
