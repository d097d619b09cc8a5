"""Names of files on the Hugging Face hub: `hf:org/repo` and `hf:org/repo:file.gguf`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.errors import RequestError

HUB_PREFIX = "hf:"
MODEL_SUFFIX = ".gguf"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(f"{_PART}/{_PART}")
# No segment starts with a dot: neither `..` nor a hidden file can be named.
_FILE = re.compile(r"(?:[A-Za-z0-9_+-][A-Za-z0-9_+. -]*/)*[A-Za-z0-9_+-][A-Za-z0-9_+. -]*")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on the hub; `file` is a path inside it, None when left open."""

    repo_id: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{HUB_PREFIX}{self.repo_id}" + (f":{self.file}" if self.file else "")


def parse_hub_name(name: str) -> HubName:
    """Parse `hf:org/repo[:file.gguf]`. Raises RequestError (field `name`) when it isn't one."""
    repo_id, separator, file = name.removeprefix(HUB_PREFIX).partition(":")
    repo_is_valid = _REPO_ID.fullmatch(repo_id) and "--" not in repo_id and ".." not in repo_id
    file_is_valid = is_model_file(file) and _FILE.fullmatch(file)
    if not name.startswith(HUB_PREFIX) or not repo_is_valid or (separator and not file_is_valid):
        raise RequestError("name", name, "a hub name reads hf:org/repo or hf:org/repo:file.gguf")
    return HubName(repo_id, file or None)


def is_model_file(file: str) -> bool:
    """Whether the name ends in .gguf, in any case of letters."""
    return file.lower().endswith(MODEL_SUFFIX)
