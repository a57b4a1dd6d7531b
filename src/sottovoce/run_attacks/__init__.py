"""Attacks on finished runs, and audits of them."""
