"""Names what is learnt from ended tasks, transfers and queue waits."""
