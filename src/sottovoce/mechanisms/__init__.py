"""Mechanisms: privatise and compress in one step. One file each, found by the registry."""
