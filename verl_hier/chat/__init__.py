"""How a conversation becomes tokens: tokenizers, chat templates, tool calls, and what a given model does with them."""
