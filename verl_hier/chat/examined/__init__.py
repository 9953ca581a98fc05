"""What a model can do here, from its config and tokenizer alone: `verl-hier doctor MODEL`, and what `check` refuses."""
