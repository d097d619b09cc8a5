"""Seeded workloads: prompts, lengths and arrivals of requests; reads datasets, nothing else."""
