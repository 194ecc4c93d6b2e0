"""Compare fedloom with other libraries on the same work, each in its own process.

Model, data, batches and rounds are the same for all of them.
"""
