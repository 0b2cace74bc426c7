"""What is kept on disk: the journal of facts, large payloads, and the lock that keeps a second master away."""
