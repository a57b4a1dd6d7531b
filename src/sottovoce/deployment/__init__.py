"""The Flower backend: the same rounds, between machines that do not trust each other."""
