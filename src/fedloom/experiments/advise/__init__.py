"""`fedloom advise`: from data to a verdict, for somebody who knows no method names."""
