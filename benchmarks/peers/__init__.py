"""Engines that decode plainly, each in a process of its own: ours, and what one would otherwise run on a CPU.

A worker (`python -m benchmarks.peers.NAME MODEL THREADS [VARIANT]`) may run in an environment without this project's
packages, so the workers and `worker.py` import nothing but numpy and their own engine.
"""
