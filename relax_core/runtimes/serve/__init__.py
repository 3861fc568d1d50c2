"""Roles as Ray Serve applications: fronts that can be replaced, and ranks that hold the models."""
