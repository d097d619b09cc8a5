"""Exact prompt lengths by the server's tokenizer, by a file's, and what is said when they disagree."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import tokenizers
from tests.loadgen.fake_server import Exchange, Request, chat, completion, running, usage

from ridgeline.errors import ConfigError
from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.codecs import ServerCodec, file_codec
from ridgeline.loadgen.result import ReportSettings, load_result
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.synthetic import RandomLengths


def encode(text: str) -> list[int]:
    """Pairs of bytes: what is drawn merges differently once it is joined."""
    data = text.encode()
    return [int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2)]


def decode(token_ids: list[int]) -> str:
    return b"".join(each.to_bytes(2 if each > 255 else 1, "big") for each in token_ids).decode(
        "utf-8", "replace"
    )


def tokenize(request: Request) -> object:
    token_ids = encode(request.json["prompt"])
    return {"tokens": [1, *token_ids] if request.json["add_special_tokens"] else token_ids}


def detokenize(request: Request) -> object:
    return {"prompt": decode(request.json["tokens"])}


async def answer_chat(exchange: Exchange) -> None:
    content = exchange.request.json["messages"][0]["content"]
    await exchange.head()
    await exchange.event(chat({"role": "assistant", "content": ""}))
    await exchange.event(chat({"content": "a"}, finish="length"))
    await exchange.event({"choices": [], "usage": usage(len(encode(content)) + 1 + 9, 1)})
    await exchange.event("[DONE]")
    await exchange.end()


def test_c24_chat_prompts_have_the_exact_length_by_the_servers_tokenizer() -> None:
    with running(answer_chat, tokenize=tokenize, detokenize=detokenize) as server:
        target = TargetSettings(url=server.url, model="m", backend="openai-chat")
        dataset = DatasetSettings(num_prompts=20, random=RandomLengths(input_len=65, output_len=1))
        plan = plan_load(target, dataset, TrafficSettings())
        document = load_result(plan, execute_load(plan), ReportSettings())
        contents = [r.json["messages"][0]["content"] for r in server.generations]
    assert [len(encode(content)) + 1 for content in contents] == [65] * 20
    assert document["total_input_tokens"] == 20 * (65 + 9)
    assert document["requested_input_tokens"] == 20 * 65
    assert "+9 tokens a prompt" in document["prompt_mismatch"]


def words_tokenizer(folder: Path) -> str:
    """A tokenizer whose every word is a token."""
    vocabulary = {"[UNK]": 0} | {
        word: index for index, word in enumerate(("the", "of", "and", "dal", "bed"), 1)
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def test_c24_a_tokenizer_of_another_vocabulary_gives_way_to_the_servers(tmp_path: Path) -> None:
    other = words_tokenizer(tmp_path)
    dataset = DatasetSettings(num_prompts=5, random=RandomLengths(input_len=65, output_len=1))
    with running(answer_chat, tokenize=tokenize, detokenize=detokenize) as server:
        target = TargetSettings(url=server.url, model="m", backend="openai-chat", tokenizer=other)
        plan = plan_load(target, dataset, TrafficSettings())
        document = load_result(plan, execute_load(plan), ReportSettings())
        contents = [r.json["messages"][0]["content"] for r in server.generations]
    assert [len(encode(content)) + 1 for content in contents] == [65] * 5
    [note] = [note for note in document["notes"] if "is not the server's" in note]
    assert "it makes" in note
    assert "+9 tokens a prompt" in document["prompt_mismatch"]


def test_c24_without_tokenize_a_mismatch_is_told_once_with_both_counts(tmp_path: Path) -> None:
    other = words_tokenizer(tmp_path)
    dataset = DatasetSettings(num_prompts=5, random=RandomLengths(input_len=65, output_len=1))
    with running(answer_chat) as server:
        target = TargetSettings(url=server.url, model="m", backend="openai-chat", tokenizer=other)
        plan = plan_load(target, dataset, TrafficSettings())
        document = load_result(plan, execute_load(plan), ReportSettings())
        counted = sum(len(encode(r.json["messages"][0]["content"])) + 10 for r in server.generations)
    assert (document["requested_input_tokens"], document["total_input_tokens"]) == (5 * 65, counted)
    assert document["prompt_mismatch"].startswith("5 of 5 prompts are of another length")
    assert not any("tokenizer" in note for note in document["notes"])


def test_a_tokenize_that_answers_something_else_is_none() -> None:
    with running(answer_chat, tokenize=lambda _: {"tokens": "x"}, detokenize=detokenize) as server:
        codec = ServerCodec(server.url, {}, "m")
        assert not codec.is_there
        with pytest.raises(ConfigError, match="tokenizer"):
            codec.encode("a")
        codec.close()


def test_c24_lengths_that_the_server_counts_otherwise_are_reported_once() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        wrong = 40 if exchange.request.index % 2 else 32
        await exchange.event(completion("a", finish="length", usage=usage(wrong, 1)))
        await exchange.event("[DONE]")
        await exchange.end()

    with running(script) as server:
        dataset = DatasetSettings(num_prompts=6, random=RandomLengths(input_len=32, output_len=1))
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        document = load_result(plan, execute_load(plan), ReportSettings())
    assert (document["requested_input_tokens"], document["total_input_tokens"]) == (192, 216)
    assert "3 of 6 prompts are of another length" in document["prompt_mismatch"]


def test_a_tokenizer_json(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, **{word: index for index, word in enumerate(("a", "b", "the"), 1)}}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = file_codec(str(tmp_path))
    assert codec.encode("a the b") == [1, 3, 2]
    assert codec.decode([1, 3]) == "a the"
    assert codec.num_added_tokens == 0


@pytest.mark.parametrize("name", ["nope.gguf", "nope.json", "nowhere"])
def test_no_tokenizer(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        file_codec(str(tmp_path / name))
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(ConfigError, match="can't be read"):
        file_codec(str(broken))


@pytest.mark.golden
def test_texts_of_512_tokens_by_the_real_tokenizer(model_path: Path) -> None:
    codec = file_codec(str(model_path))
    maker = PromptMaker(codec, Random(0), as_text=True)
    for _ in range(50):
        assert len(codec.encode(str(maker.prompt(512)))) + codec.num_added_tokens == 512
