"""How published data sets lie on disk: one file for each family of layouts."""
