"""Runtimes place roles and let them run; the roles do not know which one does."""
