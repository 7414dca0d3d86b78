"""Everything that runs inside Triton: step protocol, coordinator, budget, sampling, engines, drafters."""
