"""Scalar noise laws, and drawing from them on a grid without any rounding error."""
