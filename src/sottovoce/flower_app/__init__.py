"""The Flower app: another front door, as the command line is one."""
