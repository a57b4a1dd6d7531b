"""Scalar noise laws: moments, quantiles and exact tails."""
