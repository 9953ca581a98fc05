"""What learns, or is asked, beside the policy: critics with heads, a critic that replays, a second model, probes."""
