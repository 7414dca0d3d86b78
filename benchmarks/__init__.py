"""Programs that measure: engines, draft calls, overhead, served speed, other engines beside ours."""
