"""How messages reach the server, and so what it sees of them."""
