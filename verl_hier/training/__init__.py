"""The trainer side: which rows are trained, guards, credit, metrics, schedules."""
