"""Learning on torch: data, models, partitions, local training. Needs the extra `learn`."""
