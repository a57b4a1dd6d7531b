"""Typed specs from TOML (the only importer of pydantic)."""
