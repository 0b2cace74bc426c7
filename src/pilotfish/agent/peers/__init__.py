"""The overlay: the agents of a site as peers that find contents, reach all of them at once, and choose one that speaks for the site.

Pure. ``peer.py`` is the machine that a host drives; all else here are parts of it.
"""
