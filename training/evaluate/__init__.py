"""How good drafters are: acceptance on held-out texts, calibration, experiments, the router."""
