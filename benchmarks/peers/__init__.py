"""Ours beside other libraries on the same work: same model, data, batches and rounds, each in a process of its own."""
