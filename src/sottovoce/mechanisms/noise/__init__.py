"""Scalar noise laws, and sampling from them on a grid without rounding error."""
