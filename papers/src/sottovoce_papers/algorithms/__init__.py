"""NbAFL and mode connectivity."""
