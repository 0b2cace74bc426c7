"""Commands that run, inspect, control and maintain."""
