"""Models behind an OpenAI-compatible endpoint: as the policy of a rollout, and as a judge of it."""
