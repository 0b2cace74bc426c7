"""Contains the machine. It turns inputs and a clock into facts and effects, and does no I/O."""
