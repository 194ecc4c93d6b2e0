"""Plug-ins, one file each, that go round any method that shares weights: `METHOD+PLUGIN`."""
