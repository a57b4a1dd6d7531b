"""The only code that runs a round: simulator and deployment both call it."""
