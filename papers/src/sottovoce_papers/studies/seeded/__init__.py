"""Sixteen-byte updates beside the others."""
