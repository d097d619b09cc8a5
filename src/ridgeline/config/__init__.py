"""Frozen settings, validated once and passed in."""
