#!/usr/bin/env python3
"""Measure Hugging Face transformers on torch, fp32, from one GGUF file.

    bench_hf.py --model FILE [--threads 2] [--repeats 3] [--only KEYS]
                [--attention sdpa|eager] [--json]

The weights are dequantised to fp32 while loading.  Prints one JSON object with
--json, a table without, under the same keys as bench_llama.py.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time

from peer_record import cpu_model, cpu_seconds, others_share, sha256, summary

STEPS = 64  # generated tokens per sequence in every decode measurement
CONTEXT = 128  # tokens already held by each sequence in batched decode
LOAD_PROMPT = 16  # prompt length for load_s

DEFAULT_KEYS = (
    "load_s",
    "prefill_512_tok_s",
    "decode_b1_tok_s",
    "decode_b16_tok_s",
    "e2e_b16_128in_64out_out_tok_s",
)


def prompt_ids(n, stream=0):
    """Fixed token ids, far from the special ones; the same for every engine."""
    return [1000 + (i * 7919 + stream * 104729) % 40000 for i in range(n)]


def load(path, attention):
    import torch
    from transformers import AutoModelForCausalLM

    folder, name = os.path.split(os.path.abspath(path))
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation=attention
    )
    return model.eval()


class Runner:
    def __init__(self, model):
        import torch
        from transformers import DynamicCache

        self.torch, self.model = torch, model
        self.cache = DynamicCache(config=model.config)

    def _forward(self, ids, start):
        position = self.torch.arange(start, start + ids.shape[1])
        out = self.model(
            input_ids=ids,
            past_key_values=self.cache,
            use_cache=True,
            position_ids=position[None].expand(ids.shape[0], -1),
            logits_to_keep=1,
        )
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def prefill(self, prompts):
        return self._forward(self.torch.tensor(prompts), 0)

    def generate(self, first, start, steps):
        ids, token = [], first
        for i in range(steps):
            token = self._forward(token, start + i)
            ids.append(token)
        return self.torch.cat(ids, 1)

    def cut(self, length):
        """Forget what follows the first length tokens of every sequence."""
        self.cache.crop(length - self.cache.get_seq_length())


class Bench:
    """One measurement: sample() gives one value."""

    def __init__(self, key, model, args):
        self.model, self.args, self.ids, self.runner = model, args, None, None
        for kind, pattern in (
            ("load", r"load_s"),
            ("prefill", r"prefill_(\d+)_tok_s"),
            ("depth", r"decode_b1_depth(\d+)_tok_s"),
            ("decode", r"decode_b(\d+)_tok_s"),
            ("e2e", r"e2e_b(\d+)_(\d+)in_(\d+)out_out_tok_s"),
        ):
            m = re.fullmatch(pattern, key)
            if m:
                self.kind, self.numbers = kind, [int(x) for x in m.groups()]
                return
        sys.exit("bench_hf: unknown key " + key)

    def sample(self):
        kind, n = self.kind, self.numbers
        if kind == "load":
            t = time.perf_counter()
            Runner(load(self.args.model, self.args.attention)).prefill([prompt_ids(LOAD_PROMPT)])
            return time.perf_counter() - t
        if kind == "prefill":
            runner = Runner(self.model)
            t = time.perf_counter()
            runner.prefill([prompt_ids(n[0])])
            return n[0] / (time.perf_counter() - t)
        if kind == "e2e":
            runner = Runner(self.model)
            prompts = [prompt_ids(n[1], s) for s in range(n[0])]
            t = time.perf_counter()
            first = runner.prefill(prompts)
            ids = runner.generate(first, n[1], n[2] - 1)
            t = time.perf_counter() - t
            self.ids = runner.torch.cat([first, ids], 1)
            return n[0] * n[2] / t
        if self.runner is None:
            if kind == "depth":
                self.sequences, self.start = 1, n[0]
            else:
                self.sequences, self.start = n[0], 1 if n[0] == 1 else CONTEXT
            self.runner = Runner(self.model)
            self.first = self.runner.prefill([prompt_ids(self.start, s) for s in range(self.sequences)])
            self.runner.generate(self.first, self.start, 2)
            self.runner.cut(self.start)
        t = time.perf_counter()
        self.ids = self.runner.generate(self.first, self.start, STEPS)
        t = time.perf_counter() - t
        self.runner.cut(self.start)
        return self.sequences * STEPS / t


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--model", required=True, help="GGUF file")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--only", help="comma-separated keys instead of all")
    p.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    if not os.path.isfile(args.model):
        p.error("no such file: " + args.model)
    keys = args.only.split(",") if args.only else list(DEFAULT_KEYS)

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)

    digest = sha256(args.model)
    model = load(args.model, args.attention)
    runs, others, ids = {}, {}, {}
    with torch.inference_mode():
        Runner(model).prefill([prompt_ids(32)])
        for key in keys:
            bench = Bench(key, model, args)
            t = time.perf_counter()
            before = cpu_seconds()
            runs[key] = [bench.sample() for _ in range(args.repeats)]
            others[key] = others_share(before, cpu_seconds())
            if bench.ids is not None:
                ids[key] = bench.ids[0, :8].tolist()
            print(
                f"{key:32} {statistics.median(runs[key]):10.4g}   "
                f"({time.perf_counter() - t:.0f} s, others {others[key]})",
                file=sys.stderr,
            )

    result = {
        "engine": "transformers",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "model": os.path.basename(args.model),
        "model_sha256": digest,
        "format": "fp32, dequantised from the file",
        "threads": args.threads,
        "repeats": args.repeats,
        "settings": {"attention": args.attention},
        "cpu": cpu_model(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "first_ids": ids,
    }
    result.update((k, summary(v, others[k])) for k, v in runs.items())
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        print(f"{result['version']}, {args.threads} threads")
        for k in runs:
            v = result[k]
            print(f"{k:32} {v['median']:10.4g}  [{v['min']:.4g} .. {v['max']:.4g}]")


if __name__ == "__main__":
    main()
