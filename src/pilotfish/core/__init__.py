"""Contains the machine, which turns inputs and a clock into facts and effects, and does no I/O."""
