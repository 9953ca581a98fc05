"""What the larger commands run: quickstart, offline credit, replay, exchange of formats, new packages."""
