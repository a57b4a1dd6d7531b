"""The experiment `udp-dra`: data reconstruction against UDP-FL."""
