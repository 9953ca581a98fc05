"""What learns or is asked beside the policy."""
