"""Training engines beside verl's own."""
