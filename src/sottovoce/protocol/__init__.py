"""What client and server do in a round, without torch: messages, plans, channels, sums."""
