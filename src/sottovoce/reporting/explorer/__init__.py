"""The mechanism explorer: move a parameter, see what it does; a page served to this machine."""
