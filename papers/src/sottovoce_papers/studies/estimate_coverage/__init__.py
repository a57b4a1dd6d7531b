"""How often intervals of estimates hold."""
