"""The experiment `udp-noise`: the noises of UDP-FL at one budget."""
