"""The network of the peers, without I/O: agents of a site find contents, send broadcasts and elect a site master.

A host drives ``Peer`` in ``peer.py``. The other modules are parts of ``Peer``.
"""
