"""Programs that run in the environment of each contestant. They use only the standard library and the contestant."""
