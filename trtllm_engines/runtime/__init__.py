"""A TensorRT-LLM engine behind `TargetEngine`: every verify pass is one pass of ragged context rows over paged KV."""
