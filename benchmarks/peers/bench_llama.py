#!/usr/bin/env python3
"""Measure llama.cpp (through llama-cpp-python's low-level API) on one GGUF file.

    bench_llama.py --model FILE [--threads 2] [--repeats 3] [--only KEYS]
                   [--requantize q4_0|q8_0] [--json]

Prints one JSON object with --json, a table without.  The keys are described in
README.md; every engine we compare prints the same ones.
"""

import argparse
import ctypes
import gc
import json
import os
import re
import statistics
import sys
import time

import llama_cpp as L  # noqa: N812
import numpy as np
from peer_record import cpu_model, cpu_seconds, others_share, sha256, summary

STEPS = 64  # generated tokens per sequence in every decode measurement
CONTEXT = 128  # tokens already held by each sequence in batched decode
LOAD_PROMPT = 16  # prompt length for load_s

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
FTYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7}
FLASH = {"auto": -1, "off": 0, "on": 1}

_messages = []


@L.llama_log_callback
def _log(_level, text, _data):
    # Kept rather than printed; shown only when something fails.
    _messages.append(text.decode("utf-8", "replace"))
    del _messages[:-40]


def fail(what):
    sys.exit(f"bench_llama: {what}\n{''.join(_messages)}")


def prompt_ids(n, stream=0):
    """Fixed token ids, far from the special ones; the same for every engine."""
    i = np.arange(n, dtype=np.int64)
    return (1000 + (i * 7919 + stream * 104729) % 40000).astype(np.int32)


class Batch:
    """A llama_batch over numpy buffers, one sequence id per token."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.token = np.zeros(capacity, np.int32)
        self.pos = np.zeros(capacity, np.int32)
        self.n_seq = np.ones(capacity, np.int32)
        self.seq = np.zeros(capacity, np.int32)
        self.out = np.zeros(capacity, np.int8)
        self.seq_ptr = self.seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self.raw = L.llama_batch()
        for name, array in (
            ("token", self.token),
            ("pos", self.pos),
            ("n_seq_id", self.n_seq),
            ("seq_id", self.seq_ptr),
            ("logits", self.out),
        ):
            kind = dict(L.llama_batch._fields_)[name]
            setattr(self.raw, name, ctypes.cast(array.ctypes.data, kind))

    def set(self, token, pos, seq, out):
        n = len(token)
        assert n <= self.capacity
        self.token[:n], self.pos[:n], self.seq[:n], self.out[:n] = token, pos, seq, out
        self.raw.n_tokens = n


class Context:
    """One context with room for n_seq sequences of n_len tokens each."""

    def __init__(self, model, args, n_seq, n_len):
        self.n_seq = n_seq
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        self.chunk = args.batch
        params = L.llama_context_default_params()
        params.n_ctx = n_seq * -(-n_len // 256) * 256
        params.n_batch = self.chunk
        params.n_ubatch = args.ubatch
        params.n_seq_max = n_seq
        params.n_threads = params.n_threads_batch = args.threads
        params.flash_attn_type = FLASH[args.flash_attn]
        params.kv_unified = args.kv_unified
        self.ctx = L.llama_init_from_model(model, params)
        if not self.ctx:
            fail("no context")
        self.memory = L.llama_get_memory(self.ctx)
        self.batch = Batch(max(self.chunk, n_seq))

    def close(self):
        L.llama_free(self.ctx)
        self.ctx = None

    def _decode(self):
        code = L.llama_decode(self.ctx, self.batch.raw)
        if code:
            fail(f"llama_decode returned {code}")

    def _argmax(self, n):
        """Greedy choice for the n outputs of the last call, in batch order."""
        logits = np.ctypeslib.as_array(L.llama_get_logits(self.ctx), shape=(n, self.n_vocab))
        return logits.argmax(axis=1).astype(np.int32)

    def clear(self):
        L.llama_memory_clear(self.memory, False)

    def cut(self, length):
        """Forget what follows the first length tokens of every sequence."""
        for s in range(self.n_seq):
            L.llama_memory_seq_rm(self.memory, s, length, -1)

    def prefill(self, prompts):
        """Whole prompts, in calls of at most n_batch tokens; the first greedy token of each."""
        first = np.zeros(len(prompts), np.int32)
        token = np.concatenate(prompts)
        pos = np.concatenate([np.arange(len(p)) for p in prompts])
        seq = np.concatenate([np.full(len(p), s) for s, p in enumerate(prompts)])
        out = np.concatenate([np.arange(len(p)) == len(p) - 1 for p in prompts])
        for a in range(0, len(token), self.chunk):
            part = slice(a, a + self.chunk)
            self.batch.set(token[part], pos[part], seq[part], out[part])
            self._decode()
            ends = seq[part][out[part]]
            if len(ends):
                first[ends] = self._argmax(len(ends))
        L.llama_synchronize(self.ctx)
        return first

    def generate(self, first, start, steps):
        """steps greedy steps for all sequences; the ids as [step, sequence]."""
        ids = np.empty((steps, len(first)), np.int32)
        seq = np.arange(len(first))
        token = first
        for i in range(steps):
            self.batch.set(token, start + i, seq, 1)
            self._decode()
            token = ids[i] = self._argmax(len(first))
        return ids


def load(path):
    params = L.llama_model_default_params()
    params.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        fail("cannot load " + os.path.basename(path))
    return model


def measure_load(path, args):
    t = time.perf_counter()
    model = load(path)
    ctx = Context(model, args, 1, 512)
    ctx.prefill([prompt_ids(LOAD_PROMPT)])
    t = time.perf_counter() - t
    ctx.close()
    L.llama_model_free(model)
    return t


class Bench:
    """One measurement: prepare() once, then sample() gives one value."""

    def __init__(self, key, model, path, args):
        self.key, self.model, self.path, self.args = key, model, path, args
        self.ctx = self.first = self.ids = None
        self.kind, self.numbers = self.parse(key)

    @staticmethod
    def parse(key):
        for kind, pattern in (
            ("load", r"load_s"),
            ("prefill", r"prefill_(\d+)_tok_s"),
            ("depth", r"decode_b1_depth(\d+)_tok_s"),
            ("decode", r"decode_b(\d+)_tok_s"),
            ("e2e", r"e2e_b(\d+)_(\d+)in_(\d+)out_out_tok_s"),
        ):
            m = re.fullmatch(pattern, key)
            if m:
                return kind, [int(x) for x in m.groups()]
        sys.exit("bench_llama: unknown key " + key)

    def prepare(self):
        kind, n = self.kind, self.numbers
        if kind == "prefill":
            self.ctx = Context(self.model, self.args, 1, n[0])
        elif kind == "depth":
            self.start = n[0]
            self.ctx = Context(self.model, self.args, 1, n[0] + STEPS)
            self.first = self.ctx.prefill([prompt_ids(n[0])])
        elif kind == "decode":
            self.start = 1 if n[0] == 1 else CONTEXT
            self.ctx = Context(self.model, self.args, n[0], self.start + STEPS)
            self.first = self.ctx.prefill([prompt_ids(self.start, s) for s in range(n[0])])
        elif kind == "e2e":
            self.ctx = Context(self.model, self.args, n[0], n[1] + n[2])
        if kind in ("depth", "decode"):
            self.ctx.generate(self.first, self.start, 2)
            self.ctx.cut(self.start)
        elif kind in ("prefill", "e2e"):
            self.ctx.prefill([prompt_ids(32)])
            self.ctx.clear()

    def sample(self):
        kind, n = self.kind, self.numbers
        if kind == "load":
            return measure_load(self.path, self.args)
        if kind == "prefill":
            prompts = [prompt_ids(n[0])]
            t = time.perf_counter()
            self.ctx.prefill(prompts)
            t = time.perf_counter() - t
            self.ctx.clear()
            return n[0] / t
        if kind == "e2e":
            prompts = [prompt_ids(n[1], s) for s in range(n[0])]
            t = time.perf_counter()
            first = self.ctx.prefill(prompts)
            ids = self.ctx.generate(first, n[1], n[2] - 1)
            t = time.perf_counter() - t
            self.ids = np.vstack([first, ids])
            self.ctx.clear()
            return n[0] * n[2] / t
        t = time.perf_counter()
        self.ids = self.ctx.generate(self.first, self.start, STEPS)
        t = time.perf_counter() - t
        self.ctx.cut(self.start)
        return len(self.first) * STEPS / t


def requantize(path, kind, directory, threads):
    """The same model in another format, made once and kept in `directory`."""
    stem, ext = os.path.splitext(os.path.basename(path))
    target = os.path.join(directory or os.path.dirname(path), f"{stem}.requantized-{kind}{ext}")
    if not os.path.exists(target):
        params = L.llama_model_quantize_default_params()
        params.ftype = FTYPES[kind]
        params.nthread = threads
        params.allow_requantize = True
        part = target + ".part"
        if L.llama_model_quantize(path.encode(), part.encode(), ctypes.byref(params)):
            fail("cannot requantize to " + kind)
        os.replace(part, target)
    return target


def describe(model):
    text = ctypes.create_string_buffer(128)
    L.llama_model_desc(model, text, len(text))
    return text.value.decode()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--model", required=True, help="GGUF file")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--only", help="comma-separated keys instead of all")
    p.add_argument("--requantize", choices=("q4_0", "q8_0"), help="measure the model in this format")
    p.add_argument("--requantized-dir", help="where that file is kept; by default beside the model")
    p.add_argument("--flash-attn", choices=sorted(FLASH), default="auto")
    p.add_argument("--kv-unified", action="store_true", help="one key/value buffer for all sequences")
    p.add_argument("--batch", type=int, default=2048, help="n_batch")
    p.add_argument("--ubatch", type=int, default=512, help="n_ubatch")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    if not os.path.isfile(args.model):
        p.error("no such file: " + args.model)
    keys = args.only.split(",") if args.only else list(DEFAULT_KEYS)

    L.llama_log_set(_log, ctypes.c_void_p(0))
    L.llama_backend_init()
    path = (
        requantize(args.model, args.requantize, args.requantized_dir, args.threads)
        if args.requantize
        else args.model
    )
    digest = sha256(path)  # also brings the file into the page cache
    model = load(path)

    runs, others, ids = {}, {}, {}
    for key in keys:
        bench = Bench(key, model, path, args)
        t = time.perf_counter()
        bench.prepare()
        before = cpu_seconds()
        runs[key] = [bench.sample() for _ in range(args.repeats)]
        others[key] = others_share(before, cpu_seconds())
        if bench.ids is not None:
            ids[key] = [int(x) for x in bench.ids[:8, 0]]
        if bench.ctx:
            bench.ctx.close()
        gc.collect()
        print(
            f"{key:32} {statistics.median(runs[key]):10.4g}   "
            f"({time.perf_counter() - t:.0f} s, others {others[key]})",
            file=sys.stderr,
        )

    result = {
        "engine": "llama.cpp",
        "version": "llama-cpp-python " + L.__version__,
        "model": os.path.basename(path),
        "model_sha256": digest,
        "format": describe(model),
        "threads": args.threads,
        "repeats": args.repeats,
        "settings": {
            "flash_attn": args.flash_attn,
            "kv_unified": args.kv_unified,
            "n_batch": args.batch,
            "n_ubatch": args.ubatch,
            "build": L.llama_print_system_info().decode().strip(),
        },
        "cpu": cpu_model(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "first_ids": ids,
    }
    result.update((k, summary(v, others[k])) for k, v in runs.items())
    L.llama_model_free(model)
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        print(f"{result['version']}, {result['format']}, {args.threads} threads")
        for k in runs:
            v = result[k]
            print(f"{k:32} {v['median']:10.4g}  [{v['min']:.4g} .. {v['max']:.4g}]")


if __name__ == "__main__":
    main()
