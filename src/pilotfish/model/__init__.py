"""Values that travel: frozen msgspec Structs, made once at the door and never changed afterwards."""
