"""Stored rollouts in other formats (chat messages, verl's rollout dump, ATIF) and back, and files of older versions."""

from verl_hier.ops.exchange.atif import export_atif
from verl_hier.ops.exchange.chat import export_chat, import_chat
from verl_hier.ops.exchange.convert import convert
from verl_hier.ops.exchange.dump import export_dump, import_dump

__all__ = ["convert", "export_atif", "export_chat", "export_dump", "import_chat", "import_dump"]
