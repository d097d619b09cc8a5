"""Models by name: the catalogue, the cache directory, and what fetches into it."""
