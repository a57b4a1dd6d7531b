"""Aggregation of decoded updates."""
