"""Heads of critics."""
