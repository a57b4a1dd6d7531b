"""The algorithms NbAFL and mode connectivity."""
