"""Charts as inline SVG, for pages, notebooks and files."""
