"""Controls pilots at sites.

``site_router`` creates one controller per site: ``local_controller`` for this machine, ``site_controller`` for any other site. A site
controller submits pilots. Its ``pilot_monitor`` polls and cancels pilots. Its ``credential_watch`` checks credentials. The site controller
and its monitor share the records in ``site_pilots``. All these parts reach the site through ``site_access``, which uses ``site_files``,
``command_runner``, ``ssh_connection`` and ``tunnel``. ``submitted_batches`` writes pilot batches to disk, so that a restarted master finds
these batches again.
"""
