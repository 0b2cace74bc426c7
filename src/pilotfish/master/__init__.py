"""The master: the live host of the pure machine, with an event loop, sockets, a journal and batch systems."""
