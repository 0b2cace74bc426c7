"""Names the parts of the pure peer overlay: agents of a site find contents, send broadcasts and elect a site master.

A host drives ``SiteMember``; the other modules are its parts.
"""
