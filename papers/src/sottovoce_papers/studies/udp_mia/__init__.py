"""Membership inference against UDP-FL."""
