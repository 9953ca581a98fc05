"""Questions to the policy about its rollouts."""
