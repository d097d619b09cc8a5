"""Tokenizers for exact prompt lengths: a file here, or the server's own `/tokenize`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from ridgeline.errors import ConfigError
from ridgeline.formats.gguf import open_gguf
from ridgeline.loadgen.http_client import HttpClient
from ridgeline.loadgen.server_facts import ServerFacts
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer


class GgufCodec:
    """The tokenizer of a .gguf file."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def num_added_tokens(self) -> int:
        """1 where the file asks for a BOS."""
        return len(self._tokenizer.encode_prompt("a")) - len(self._tokenizer.encode("a"))

    def encode(self, text: str) -> list[int]:
        """The ids of a text; control tokens written in it stay text."""
        return self._tokenizer.encode(text, parse_special=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._tokenizer.decode(token_ids)


class JsonCodec:
    """The tokenizer of a tokenizer.json."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def num_added_tokens(self) -> int:
        """What its post-processor adds to one text."""
        return int(self._tokenizer.num_special_tokens_to_add(False))

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


class ServerCodec:
    """The tokenizer behind a server; each call is a round trip, so only for before a run.

    It keeps an event loop and connections of its own, since prompts are made in plain calls: to be used
    from a thread without a running loop, and closed.
    """

    def __init__(self, url: str, headers: dict[str, str], model: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._http = HttpClient(url)
        self._facts = ServerFacts(self._http, headers)
        self._model = model

    @property
    def num_added_tokens(self) -> int:
        """How many more tokens "a" has with the server's special tokens than without."""
        return len(self._ids("a", adds_special=True)) - len(self._ids("a", adds_special=False))

    @property
    def is_there(self) -> bool:
        """The server answers `/tokenize` and `/detokenize` as one of those that we know."""
        token_ids = self._run_tokenize("a b", adds_special=False)
        if not token_ids:
            return False
        text = self._loop.run_until_complete(self._facts.detokenize(self._model, token_ids))
        return text is not None and text.strip() == "a b"

    def encode(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
            ConfigError: the server stopped answering.
        """
        return self._ids(text, adds_special=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids.

        Raises:
            ConfigError: the server stopped answering.
        """
        text = self._loop.run_until_complete(self._facts.detokenize(self._model, token_ids))
        if text is None:
            raise ConfigError("tokenizer", "server", "/detokenize stopped answering; give --tokenizer FILE")
        return text

    def close(self) -> None:
        """Close its connections."""
        self._loop.run_until_complete(self._http.close())
        self._loop.close()

    def _ids(self, text: str, *, adds_special: bool) -> list[int]:
        token_ids = self._run_tokenize(text, adds_special=adds_special)
        if token_ids is None:
            raise ConfigError("tokenizer", "server", "/tokenize stopped answering; give --tokenizer FILE")
        return list(token_ids)

    def _run_tokenize(self, text: str, *, adds_special: bool) -> Sequence[int] | None:
        return self._loop.run_until_complete(
            self._facts.tokenize(self._model, text, adds_special=adds_special)
        )


def file_codec(name: str) -> GgufCodec | JsonCodec:
    """The tokenizer of a .gguf, of a tokenizer.json, or of a directory that holds one.

    Raises:
        ConfigError: there is none; ModelFileError: the .gguf is broken.
    """
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError("tokenizer", name, "is no file")
        with open_gguf(path) as file:
            return GgufCodec(build_tokenizer(file.metadata, path=path))
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError("tokenizer", name, "must be a .gguf, a tokenizer.json or a directory with one")
    try:
        return JsonCodec(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # noqa: BLE001 - the library raises a bare Exception for whatever is wrong
        raise ConfigError("tokenizer", name, f"can't be read: {error}") from None
