"""What the trainer does between rollout and update: rows, guards, credit, metrics and schedules."""
