"""The page of `verl-hier view`: what was said, where it branched, and why a turn got its credit."""
