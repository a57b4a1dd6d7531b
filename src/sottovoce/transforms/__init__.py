"""Transforms of an update before it is encoded."""
