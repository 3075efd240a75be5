"""Says whether a deployment can retry writes: facts are gathered, then judged, then told.

options     the command line
command     the command: from a connection string to an exit code
gather      asks the servers; writes nothing
members     asks one of them
report      tells it, to people or as JSON
judge       what follows from the facts (pure)
about_writes  about_servers  about_client
            the rules (pure)
secrets     what must not be told
finding     one thing that is said
facts       what is known of a deployment, and what is not
"""
