"""The only package that knows Triton's Python API; it moves messages and decides nothing.

`messages` requests and responses, `outbox` the thread that answers clients, `bls` engines behind BLS calls,
`observe` metrics and the log, `link` from the non-decoupled twin to the coordinator, `models` the Triton models.
"""
