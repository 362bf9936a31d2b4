"""Runs targets in children of a preloaded fork server, each watched by a warden that leaves no process behind."""
