"""The experiment `udp-mia`: membership inference against UDP-FL."""
