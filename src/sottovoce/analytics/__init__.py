"""Private statistics about many people's values."""
