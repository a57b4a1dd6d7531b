"""Data reconstruction against UDP-FL."""
