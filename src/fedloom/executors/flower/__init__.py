"""Clients elsewhere: any method on a Flower federation, simulated or real. Needs the extra `flower`.

`fedloom.executors.flower.client:app` and `fedloom.executors.flower.server:app` are what a Flower app points to;
`fedloom flower init` writes one. See docs/flower.md.
"""
