"""Machines by name: what their data sheets say, for the same analysis as of a measured machine."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.errors import ConfigError
from ridgeline.perf.hardware_cpus import CPUS
from ridgeline.perf.hardware_entry import HardwareEntry
from ridgeline.perf.hardware_gpus import GPUS, SOCS

HARDWARE: Mapping[str, HardwareEntry] = MappingProxyType(
    {entry.name: entry for entry in (*CPUS, *GPUS, *SOCS)}
)
"""Every entry by its name."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "a100": "a100-80gb-sxm",
        "a100-40": "a100-40gb",
        "a100-80": "a100-80gb-sxm",
        "a100-80gb": "a100-80gb-sxm",
        "a100-sxm": "a100-80gb-sxm",
        "a100-pcie": "a100-80gb-pcie",
        "h100": "h100-sxm",
        "h100-80gb": "h100-sxm",
        "h100-sxm5": "h100-sxm",
        "h200": "h200-sxm",
        "4090": "rtx-4090",
        "5090": "rtx-5090",
        "i9-14900k": "core-i9-14900k",
        "14900k": "core-i9-14900k",
        "7950x": "ryzen-7950x",
        "9950x": "ryzen-9950x",
        "xeon-8480": "xeon-8480+",
        "xeon-8592": "xeon-8592+",
        "sapphire-rapids": "xeon-8480+",
        "emerald-rapids": "xeon-8592+",
        "granite-rapids": "xeon-6980p",
        "milan": "epyc-7763",
        "genoa": "epyc-9654",
        "turin": "epyc-9755",
    }
)
"""Short names; a family's name stands for its usual largest member."""

_MAKERS = ("nvidia", "geforce", "amd", "instinct", "intel", "platinum", "gold", "apple", "aws")
_NUM_NEAREST = 3


def find_hardware(name: str) -> HardwareEntry:
    """The entry of this name or alias, whatever its case, dashes, spaces and maker's name.

    Raises:
        ConfigError: there is none; the remedy names the nearest, and the command that lists all.
    """
    names = {_key(each): each for each in HARDWARE} | {_key(each): of for each, of in ALIASES.items()}
    found = names.get(_key(name))
    if found is not None:
        return HARDWARE[found]
    near = difflib.get_close_matches(_key(name), names, n=_NUM_NEAREST, cutoff=0.5)
    nearest = ", ".join(dict.fromkeys(names[each] for each in near))
    remedy = f"is not in the table{f'; nearest: {nearest}' if nearest else ''}; "
    raise ConfigError("hardware", name, f"{remedy}`ridgeline plan --list-hardware` shows all")


def _key(name: str) -> str:
    words = "".join(c if c.isalnum() or c == "+" else " " for c in name.lower()).split()
    return "".join(word for word in words if word not in _MAKERS)
