"""What-ifs that can be run here, against real runs: predicted and measured change of a decode step.

    python benchmarks/what_if_check.py [--rounds N] [--json FILE]

Each question changes the batch, the context, the threads or the weights of a decode step of one request at
512 tokens. `predicted` is the ratio that `perf.what_if` gives from the stored calibration before anything
runs; `measured` is that of two real engines, which take turns step by step, so that a slow moment slows both.
For other weights the model's own are quantised again into a file of their own. What no run here can show is
answered as well, and why it is not run.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gguf

from ridgeline.bench.calibrate import stored_or_short
from ridgeline.build import EngineParts, build_engine
from ridgeline.config.engine import EngineConfig
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.request import Request
from ridgeline.engine.clock import MonotonicClock
from ridgeline.explain.questions import NOT_RUNNABLE
from ridgeline.hub.store import resolve_model
from ridgeline.model.header import read_model_header
from ridgeline.perf.crossover import decode_step
from ridgeline.perf.what_if import WhatIf, what_if
from ridgeline.perf.what_if_changes import Scenario, parse_changes
from ridgeline.sampling_params import SamplingParams

BASE_CONTEXT = 512
STEPS_PER_ROUND = 6
MAX_STEPS = 400
KV_CACHE_BYTES = 2 * 2**30
QUESTIONS = (
    ("batch=2",),
    ("batch=8",),
    ("batch=32",),
    ("context=2048",),
    ("context=4096",),
    ("threads=1",),
    ("weights=q8_0",),
    ("weights=q4_0",),
    ("weights=f16",),
    ("batch=8", "context=1024"),
    ("batch=4", "weights=q8_0"),
)

OTHERS = ("kv_dtype=int8", "bandwidth=2x", "compute=2x", "hardware=h100")


@dataclass(frozen=True)
class Check:
    """One question: seconds of a step after over before, predicted and measured."""

    question: str
    predicted: float
    measured: float
    moved_term: str

    @property
    def error(self) -> float:
        """Relative error of the predicted ratio."""
        return self.predicted / self.measured - 1


class Decoder:
    """An engine that only decodes: `batch` requests, all of them past a prompt of `context` tokens."""

    def __init__(self, path: Path, num_threads: int, *, batch: int, context: int) -> None:
        self.parts = new_engine(path, num_threads, batch)
        rng = random.Random(context)
        for index in range(batch):
            self.parts.engine.add_request(new_request(str(index), context, rng))
        self.batch = batch
        while not self._is_decoding():
            self._step()

    def step_s(self) -> float:
        """Wall seconds of one step."""
        started_at_s = time.perf_counter()
        self._step()
        return time.perf_counter() - started_at_s

    def _is_decoding(self) -> bool:
        running = self.parts.engine.scheduler.num_running
        return running == self.batch and self._last_num_tokens == self.batch

    _last_num_tokens = 0

    def _step(self) -> None:
        engine = self.parts.engine
        scheduled = engine.schedule()
        engine.commit(engine.execute(scheduled))
        self._last_num_tokens = sum(item.num_scheduled_tokens for item in scheduled.scheduled)


def new_engine(path: Path, num_threads: int, batch: int) -> EngineParts:
    config = EngineConfig(
        model=str(path),
        num_threads=num_threads,
        max_model_len=8192,
        kv_cache_bytes=KV_CACHE_BYTES,
        enable_prefix_caching=False,
        scheduler=SchedulerConfig(max_num_seqs=batch, max_num_batched_tokens=512),
    )
    return build_engine(config, home=home_dir(), clock=MonotonicClock())


def new_request(request_id: str, num_prompt: int, rng: random.Random) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=[rng.randrange(1000, 40000) for _ in range(num_prompt)],
        sampling_params=SamplingParams(temperature=0, max_tokens=MAX_STEPS, ignore_eos=True),
        arrived_at_s=0.0,
        seed=0,
        max_num_tokens=num_prompt + MAX_STEPS,
    )


def requantized(path: Path, quant_type: str, folder: Path) -> Path:
    """A copy of a model file with all its matrices in `quant_type`."""
    target = folder / f"{path.stem}.{quant_type}.gguf"
    if target.exists():
        return target
    reader = gguf.GGUFReader(path)
    wanted = gguf.GGMLQuantizationType[quant_type]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kept = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else wanted
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def decoder_of(answer: WhatIf, path: Path, folder: Path) -> Decoder:
    """The engine of the changed scenario."""
    weights = next((c.text.partition("=")[2] for c in answer.changes if c.name == "weights"), None)
    rows = answer.after.step.rows
    return Decoder(
        path if weights is None else requantized(path, weights.upper(), folder),
        answer.after.profile.num_threads,
        batch=len(rows),
        context=rows[0].num_computed_tokens,
    )


def measured_ratio(before: Decoder, after: Decoder, num_rounds: int) -> float:
    """Median over the rounds of after over before; in each, both take turns."""
    ratios = []
    for _ in range(num_rounds):
        pairs = [(before.step_s(), after.step_s()) for _ in range(STEPS_PER_ROUND)]
        ratios.append(median(a for _, a in pairs) / median(b for b, _ in pairs))
    return median(ratios)


def run_checks(
    questions: Sequence[Sequence[str]], num_rounds: int, *, path: Path, base: Scenario
) -> list[Check]:
    num_threads = base.profile.num_threads
    checks = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for texts in questions:
            answer = what_if(base, parse_changes(texts))
            before = Decoder(path, num_threads, batch=1, context=BASE_CONTEXT)
            after = decoder_of(answer, path, folder)
            ratio = measured_ratio(before, after, num_rounds)
            before.parts.engine.close()
            after.parts.engine.close()
            predicted = answer.after_s / answer.before_s
            checks.append(Check(" ".join(texts), predicted, ratio, str(answer.moved_term)))
            show(checks[-1])
    return checks


def base_scenario(path: Path) -> Scenario:
    """A decode step of one request, on this machine."""
    model = read_model_header(path).shape
    assert model is not None
    return Scenario(
        model, stored_or_short(home_dir(), cpu_limits().num_threads), decode_step(1, BASE_CONTEXT)
    )


def show_others(base: Scenario) -> None:
    for question in OTHERS:
        answer = what_if(base, parse_changes([question]))
        reason = NOT_RUNNABLE[question.partition("=")[0]]
        predicted, moved = answer.after_s / answer.before_s, answer.moved_term or "no term changes"
        print(f"{question:24} {predicted:9.2f} {'–':>9} {'–':>8}   {moved}; not run: {reason}")


def show(check: Check) -> None:
    print(
        f"{check.question:24} {check.predicted:9.2f} {check.measured:9.2f} {check.error:+8.0%}   "
        f"{check.moved_term}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    print(f"{'what if':24} {'predicted':>9} {'measured':>9} {'error':>8}   what moves")
    path = resolve_model("smollm2-135m-instruct", home_dir())
    base = base_scenario(path)
    checks = run_checks(QUESTIONS, arguments.rounds, path=path, base=base)
    show_others(base)
    errors = sorted(abs(check.error) for check in checks)
    print(f"\nmedian error {median(errors):.0%}, largest {errors[-1]:.0%}")
    if arguments.json:
        documents = [
            {"question": c.question, "predicted": c.predicted, "measured": c.measured, "error": c.error}
            for c in checks
        ]
        Path(arguments.json).write_text(json.dumps(documents, indent=2))


if __name__ == "__main__":
    main()
