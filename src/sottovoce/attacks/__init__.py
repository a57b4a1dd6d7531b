"""Attacks on models and on what leaves a client: what an attacker really learns."""
