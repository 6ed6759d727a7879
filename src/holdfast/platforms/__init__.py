"""Where nodes come from. Each platform turns orders into nodes and tells what becomes of them; it decides nothing.

Platforms do not know each other, and know nothing of jobs.
"""
