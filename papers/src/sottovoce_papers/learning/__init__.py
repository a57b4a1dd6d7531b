"""Experiments that train models over a grid."""
