"""Running a spec into a folder: here, side by side, or over a federation."""
