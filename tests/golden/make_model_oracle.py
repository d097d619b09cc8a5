"""Write `fixtures/greedy.json`, `fixtures/logprobs.npz` and `fixtures/logprobs_text.txt` with transformers.

    python make_model_oracle.py MODEL.gguf

The oracle is `LlamaForCausalLM` in float32 on the dequantised weights. Config and weights are built here
from the file with the `gguf` package alone, then compared bit for bit with transformers' own GGUF loader.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import pydoc_data.topics
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from make_tokenizer_oracle import build_hf_tokenizer, read_metadata
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_utils import PreTrainedModel

FIXTURES = Path(__file__).parent / "fixtures"
MAX_TOKENS = 48
MIN_MARGIN = 0.01  # logits; float32 rounding moves these by about 1e-4
TOPIC = "identifiers"
TOP_N = 20

LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

LONG_PROMPT = (
    "The lighthouse at the end of the bay was built in 1871, after three ships had been lost in a "
    "single winter. Its keeper, a quiet man named Thomas, lived there with his daughter and an old grey"
    " dog. Every evening he climbed the one hundred and twelve steps, trimmed the wick, filled the lamp"
    " with oil and wound the clockwork that turned the lens. In the mornings he wrote the weather into "
    "a heavy book: the wind, the height of the sea, the ships that passed and the birds that had struck"
    " the glass. His daughter learned to read from that book. She knew the names of all the ships "
    "before she knew the names of the villages along the coast. When she was eleven, a storm tore the "
    "small boat from its mooring, and for nineteen days nobody could reach them. They ate dried fish "
    "and potatoes, they burned the furniture to keep warm, and the light never went out. When the "
    "supply ship came at last, the captain asked what they needed most. Thomas thought about it for a "
    "while and then he said"
)


def _user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


PROMPTS: list[tuple[str, str | list[dict[str, str]]]] = [
    ("chat_capital", _user("What is the capital of France?")),
    ("chat_list", _user("List three primary colors.")),
    (
        "chat_system",
        [
            {"role": "system", "content": "You are a pirate."},
            {"role": "user", "content": "Who are you?"},
        ],
    ),
    (
        "chat_system_french",
        [
            {"role": "system", "content": "Always answer in French."},
            {"role": "user", "content": "How are you?"},
        ],
    ),
    (
        "chat_multi_turn",
        [
            {"role": "user", "content": "My name is Alice and I have two cats."},
            {"role": "assistant", "content": "Nice to meet you, Alice! What are your cats called?"},
            {"role": "user", "content": "Tom and Jerry. How many cats do I have?"},
        ],
    ),
    ("chat_emoji", _user("What does 🎉 mean? And 👩‍👩‍👧‍👦?")),
    ("chat_cjk", _user("请用中文介绍一下北京。")),
    ("chat_code", _user("Write a Python function that returns the factorial of n.")),
    ("chat_math", _user("What is 12 + 30? Explain step by step.")),
    ("chat_haiku", _user("Write a haiku about the sea.")),
    ("raw_capital", "The capital of France is"),
    ("raw_code_python", "def fibonacci(n):\n    "),
    ("raw_code_c", "#include <stdio.h>\n\nint main(void) {\n"),
    ("raw_cjk", "日本の首都は東京です。日本の"),
    ("raw_emoji", "🍎 apple\n🍌 banana\n🍇 grape\n🍋"),
    ("raw_accents", "Le café était fermé, alors"),
    ("raw_numbers", "1, 1, 2, 3, 5, 8, 13, 21,"),
    ("raw_story", "Once upon a time"),
    ("raw_sql", "SELECT name, age FROM users WHERE"),
    ("raw_html", "<html>\n<head>\n<title>"),
    ("raw_spaces", "  \t\n\n    return"),
    ("raw_arabic", "مرحبا بالعالم"),
    ("raw_long", LONG_PROMPT),
    ("raw_one_token", "Hello"),
]


def llama_config(metadata: dict[str, Any]) -> LlamaConfig:
    """The LlamaConfig that the file's own keys state; the output matrix is tied."""
    return LlamaConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        attn_implementation="eager",
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
    )


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows back from llama.cpp's interleaved RoPE pairs (2i, 2i+1) to transformers' halves (i, i + d/2)."""
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def state_dict_from_gguf(path: Path, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """The file's tensors in float32 under transformers' names."""
    state = {}
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    for tensor in gguf.GGUFReader(path).tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name.startswith("blk."):
            _, layer, part = tensor.name.split(".", 2)
            name = f"model.layers.{layer}.{LAYER_TENSORS[part]}"
            weight = unpermute(weight, heads[part]) if part in heads else weight
        else:
            name = {
                "token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight",
            }[tensor.name]
        state[name] = torch.from_numpy(np.ascontiguousarray(weight))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def load_model(path: Path) -> PreTrainedModel:
    """LlamaForCausalLM in float32 with the file's dequantised weights, ready for inference."""
    config = llama_config(read_metadata(path))
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(state_dict_from_gguf(path, config), strict=True)
    return model.eval()


def check_against_transformers_loader(path: Path, model: PreTrainedModel) -> None:
    """Fail unless transformers' own GGUF loader gives the same weights, bit for bit, and the same config."""
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours, other = model.state_dict(), theirs.state_dict()
    assert ours.keys() == other.keys(), ours.keys() ^ other.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, other[name]), name
    for field in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "rope_parameters",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
    ]:
        assert getattr(model.config, field) == getattr(theirs.config, field), field
    assert torch.equal(model.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str | list[dict[str, str]]) -> list[int]:
    """Ids of a raw prompt (no BOS, as the file says) or of a rendered chat."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special_tokens=False)
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


@torch.inference_mode()
def greedy(model: PreTrainedModel, ids: list[int]) -> tuple[list[int], list[float]]:
    """Greedy ids, up to MAX_TOKENS or EOS inclusive, and each step's top-1 minus top-2 logit."""
    output: list[int] = []
    margins: list[float] = []
    step, cache = torch.tensor([ids]), None
    while len(output) < MAX_TOKENS and (not output or output[-1] != model.config.eos_token_id):
        result = model(input_ids=step, past_key_values=cache, use_cache=True)
        best, best_ids = result.logits[0, -1].topk(2)
        output.append(int(best_ids[0]))
        margins.append(float(best[0] - best[1]))
        step, cache = best_ids[:1][None], result.past_key_values
    return output, margins


def greedy_case(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, name: str, prompt: Any
) -> dict[str, Any]:
    """One entry of `greedy.json`."""
    ids = prompt_ids(tokenizer, prompt)
    output, margins = greedy(model, ids)
    return {
        "name": name,
        "kind": "raw" if isinstance(prompt, str) else "chat",
        "prompt" if isinstance(prompt, str) else "messages": prompt,
        "prompt_token_ids": ids,
        "output_token_ids": output,
        "output_text": tokenizer.decode(output, skip_special_tokens=True),
        "finish_reason": "stop" if output[-1] == model.config.eos_token_id else "length",
        "min_margin": round(min(margins), 5),
        "min_margin_at": margins.index(min(margins)),
    }


def write_greedy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, about: dict[str, Any]) -> None:
    """Write `greedy.json`; fail on a prompt whose path has a near-tie."""
    cases = []
    for name, prompt in PROMPTS:
        case = greedy_case(model, tokenizer, name, prompt)
        sys.stdout.write(
            f"{name}: {len(case['prompt_token_ids'])} + {len(case['output_token_ids'])} ids, margin "
            f"{case['min_margin']} at {case['min_margin_at']}\n    {case['output_text']!r}\n"
        )
        assert case["min_margin"] > MIN_MARGIN, f"choose another prompt for {name}"
        cases.append(case)
    document = {**about, "eos_token_id": 2, "max_tokens": MAX_TOKENS, "cases": cases}
    (FIXTURES / "greedy.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def write_logprobs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write `logprobs.npz` and the text it belongs to."""
    text = pydoc_data.topics.topics[TOPIC]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert 1000 <= len(ids) <= 1300, len(ids)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    top, top_ids = logprobs.topk(TOP_N)
    best = logits.topk(2).values
    actual = logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    (FIXTURES / "logprobs_text.txt").write_text(text, encoding="utf-8", newline="")
    np.savez_compressed(
        FIXTURES / "logprobs.npz",
        token_ids=np.array(ids, np.int32),
        top_ids=top_ids.numpy().astype(np.int32),
        top_logprobs=top.numpy().astype(np.float32),
        next_logprobs=actual.numpy().astype(np.float32),
        margins=(best[:, 0] - best[:, 1]).numpy().astype(np.float32),
        argmax_ids=top_ids[:, 0].numpy().astype(np.int32),
        perplexity=np.float64(np.exp(-actual.mean().item())),
    )
    sys.stdout.write(f"{TOPIC}: {len(ids)} ids, perplexity {np.exp(-actual.mean().item()):.6f}\n")


def main(path: Path) -> None:
    """Check the oracle, then write its fixtures."""
    torch.set_num_threads(1)
    tokenizer, model = build_hf_tokenizer(read_metadata(path)), load_model(path)
    check_against_transformers_loader(path, model)
    about = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "made_with": {p: importlib.metadata.version(p) for p in ("torch", "transformers", "gguf")},
    }
    FIXTURES.mkdir(exist_ok=True)
    write_logprobs(model, tokenizer)
    write_greedy(model, tokenizer, about)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
