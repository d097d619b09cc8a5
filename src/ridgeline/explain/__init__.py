"""One request told step by step: what each step computed, moved, took, and why."""
