"""Pure decisions: `handle(event, *, now) -> list[Action]`.

Nothing here does I/O, reads a clock, starts a thread, logs or draws a random number; `now` is the owner's
monotonic seconds. The same code runs in production, in unit tests and in the seeded simulation.
"""
