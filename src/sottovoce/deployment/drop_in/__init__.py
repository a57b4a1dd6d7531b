"""For Flower apps that exist: a client mod and a strategy wrapper, and a site's own app."""
