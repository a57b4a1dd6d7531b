"""The experiment `seeded`: updates of 16 bytes compared with other mechanisms."""
