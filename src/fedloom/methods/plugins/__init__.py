"""What can be put round any method that shares weights: `METHOD+PLUGIN`. One file per plug-in; see `method.Plugin`."""
