"""Seeded workloads: lengths and arrivals of requests; no I/O."""
