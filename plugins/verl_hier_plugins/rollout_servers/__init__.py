"""What rollout servers can do."""
