"""Contains the rules about tasks: states and queues, assignment, retries, speculative copies, shares and deadlines."""
