"""Names the parts of site control.

``site_router`` creates one controller per site: ``local_controller`` for this machine, ``site_controller`` for any other. A site
controller submits pilots (``pilot_submission``), polls and cancels them (``pilot_monitor``) and watches credentials (``credential_watch``).
All three share the records in ``site_pilots`` and reach the site through ``site_access``, which uses ``site_files``, ``command_runner``,
``ssh_connection`` and ``tunnel``. ``submitted_batches`` is what survives a restart of the master.
"""
