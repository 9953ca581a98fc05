"""Stored rollouts in other formats and back: chat messages, and verl's own rollout dump."""

from verl_hier.ops.exchange.chat import export_chat, import_chat
from verl_hier.ops.exchange.dump import export_dump, import_dump

__all__ = ["export_chat", "export_dump", "import_chat", "import_dump"]
