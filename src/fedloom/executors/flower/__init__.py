"""Clients elsewhere: any method on a Flower federation, simulated or real.

It needs the extra `flower`.

A Flower app points to `fedloom.executors.flower.client:app` and `fedloom.cli.serverapp:app`, or to
`fedloom.executors.flower.server:app`, which writes no report. `fedloom flower init` writes such an
app. See docs/flower.md.
"""
