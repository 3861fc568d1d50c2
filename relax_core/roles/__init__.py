"""Roles: each reads some columns and writes others. No role knows the mode or the runtime."""
