"""What leaves a client: really packed codes under a versioned header."""
