"""Everything that touches verl: trainer, agent loop, data set, losses, rollout servers, and the table of seams."""
