"""A load generator for any OpenAI-compatible server, and what its runs say."""
