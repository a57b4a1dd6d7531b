"""Noises of UDP-FL at one budget."""
