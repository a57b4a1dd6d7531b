"""What an attacker learns from a model or a message: one file for each attack."""
