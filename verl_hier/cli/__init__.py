"""The command line `verl-hier`. Every command imports what it needs when it is called, so that help is instant."""
