"""Threads that hash and sync beside the thread that writes.

One thread is too slow for a fast network: SHA-256 takes half a millisecond a MiB, writing about a
third of that, and a disk that syncs needs no processor at all. Jobs in these pools never wait for
other jobs, so they cannot block each other for good. Threads start with the first job.
"""

from concurrent.futures import ThreadPoolExecutor

HASHING = ThreadPoolExecutor(4, thread_name_prefix="hashing")
SYNCING = ThreadPoolExecutor(8, thread_name_prefix="syncing")
