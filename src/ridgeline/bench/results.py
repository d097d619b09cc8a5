"""A benchmark's document as a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.bench.peers import SAME_FILE

MAX_OTHERS_CPU = 0.03
"""Figures taken while others had more of the machine are marked: engines suffer from that unequally."""

Document = Mapping[str, Any]


def render_results(document: Document, command: str) -> str:
    """The page: machine, date and command, our figures, the peers' figures, and who is ahead where."""
    return "\n".join(
        [
            *_head(document, command),
            *_our_table(document),
            *(_peer_table(document) if "peers" in document else ()),
            "",
        ]
    )


def _head(document: Document, command: str) -> Iterator[str]:
    ceilings = document["ceilings"]
    memory_gib = document["memory_bytes"] / 2**30
    yield "# Results"
    yield ""
    yield f"`{document['model']}` ({document['format']}), {document['threads']} threads, {document['time']}."
    yield f"Machine: {document['cpu']}, {document['num_cpus']} CPUs, {memory_gib:.0f} GiB,"
    yield f"{document['system']} ({', '.join(document['isa_flags'])})."
    peak = ceilings["kernel_peak_macs_s"]
    shown_peak = f"{peak / 1e9:.0f} G multiply-adds/s" if peak else "unknown"
    yield f"Ceilings, measured in the same run: {ceilings['read_bandwidth_bytes_s'] / 1e9:.1f} GB/s of memory"
    yield f"read by these threads; {shown_peak} in the fastest matrix op of a 512-token step."
    yield ""
    yield f"    {command}"
    yield ""
    yield f"Each figure is the median of at least {document['repeats']} samples [least … greatest]."
    yield "The keys are defined in benchmarks/peers/README.md. `Python` is the share of a step that"
    yield "no native op took; the fractions are those of the two ceilings above. † others had more than"
    yield f"{MAX_OTHERS_CPU:.0%} of the machine meanwhile: compare with care."
    yield ""


def _our_table(document: Document) -> Iterator[str]:
    yield "| key | ridgeline | bandwidth | kernel peak | Python |"
    yield "|---|---|---|---|---|"
    for key in _keys(document):
        figures = document[key]
        shares = (
            figures.get(name) for name in ("of_read_bandwidth", "of_kernel_peak", "step_overhead_share")
        )
        yield f"| `{key}` | {_cell(figures)} | {' | '.join(_share(share) for share in shares)} |"
    yield ""


def _peer_table(document: Document) -> Iterator[str]:
    peers, ratios = document["peers"], document["ratios"]
    yield f"Peers, one sample a round, right after ours (rounds: {document['rounds']}). A ratio above 1 means"
    yield "that ridgeline is ahead; it is the median of the rounds' ratios. `best` is the peer configuration"
    yield "with the best median."
    yield ""
    yield f"| key | {' | '.join(peers)} | × same file | × best |"
    yield f"|{'---|' * (len(peers) + 3)}"
    for key in _keys(document):
        cells = [_cell(peer[key]) if key in peer else "" for peer in peers.values()]
        compared = ratios.get(key, {})
        same_file, best = compared.get("same_file"), compared.get("best")
        ours = document[key]
        cells.append(_ratio(same_file, ours, peers[SAME_FILE][key]) if same_file else "")
        cells.append(f"{_ratio(best, ours, peers[best['name']][key])} ({best['name']})" if best else "")
        yield f"| `{key}` | {' | '.join(cells)} |"
    yield ""
    for name, peer in peers.items():
        if "version" in peer:
            yield f"- {name}: {peer['version']}, {peer.get('format', '')}"
    yield ""
    behind = [key for key, compared in ratios.items() if compared["best"]["median"] < 1]
    if behind:
        yield f"A peer is ahead of ridgeline in: {', '.join(f'`{key}`' for key in behind)}."
    else:
        yield "No peer measured here is ahead of ridgeline in any of these keys."


def _keys(document: Document) -> list[str]:
    return [key for key, value in document.items() if isinstance(value, Mapping) and "median" in value]


def _cell(figures: Mapping[str, Any]) -> str:
    spread = f"[{_number(figures['min'])} … {_number(figures['max'])}]"
    return f"{_number(figures['median'])} {spread}{_mark(figures)}"


def _mark(*figures: Mapping[str, Any]) -> str:
    return " †" if any(each["others_cpu"] > MAX_OTHERS_CPU for each in figures) else ""


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _share(share: float | None) -> str:
    return f"{share:.1%}" if share is not None else ""


def _ratio(compared: Mapping[str, Any], *figures: Mapping[str, Any]) -> str:
    spread = f"[{compared['min']:.2f} … {compared['max']:.2f}]"
    return f"{compared['median']:.2f} {spread}{_mark(*figures)}"
