"""The demo: five ways to write, four ways to fail, and what the database says afterwards.

A module imports only from lower ones:

    __main__                        the command line
    command                         a run, what is seen of it, its report and exit code
    display  report                 what is seen meanwhile, and at the end
    run                             one run, from the first server to the last count
    faults  writers  database       breaking the set; writing to it; reading what it counted
    strategies                      the five ways to write
    state                           what a run knows of itself while it goes on
    counting  plan  complaint       pure: what was told beside what was counted; who gets how long;
                                    one line of what is wrong

Everything is built on the public names of aioretry and its test kit.
"""
