"""Stored rollouts in other formats and back: chat messages, verl's own rollout dump, and files of older versions."""

from verl_hier.ops.exchange.chat import export_chat, import_chat
from verl_hier.ops.exchange.convert import convert
from verl_hier.ops.exchange.dump import export_dump, import_dump

__all__ = ["convert", "export_chat", "export_dump", "import_chat", "import_dump"]
