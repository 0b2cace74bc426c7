"""The rules about tasks: states and queues, assignment, retries, copies, shares and deadlines."""
