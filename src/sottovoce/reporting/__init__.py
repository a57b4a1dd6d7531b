"""Pages for people: figures and HTML, self-contained. Needs the extra `report`."""
