"""Names the parts of site control.

``site_router`` creates one controller per site: ``local_controller`` for this machine, ``site_controller`` for any other site. A site
controller submits pilots. Its ``pilot_monitor`` polls and cancels pilots. Its ``credential_watch`` checks credentials. These three share
the records in ``site_pilots`` and reach the site through ``site_access``, which uses ``site_files``, ``command_runner``,
``ssh_connection`` and ``tunnel``. ``submitted_batches`` writes batches to disk, so that they survive a restart of the master.
"""
