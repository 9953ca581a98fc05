"""`verl-hier bench`: methods on the worlds of a panel, from one start, for equal tokens, as cells of one file."""
