"""The pure peer overlay: agents of a site find contents, send broadcasts and elect a site master.

A host drives ``Peer``. The other modules are parts of it.
"""
