"""The one version of every distribution in this repository; hatchling reads it for core and for each plugin."""

__version__ = "0.1.0"
