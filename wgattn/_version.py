"""The version, where the runtime finds it too."""

__version__ = "0.1.0"
