"""The version of the library, written down once."""

__version__ = "0.2.0.dev0"
