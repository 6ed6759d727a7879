"""The life of one job, as the master sees it.

Nodes report their whole status; the master holds one wish for each node and repeats it whenever a status shows
that the wish has not been met. So a message that is lost, doubled or late does no harm, and a master that was
restarted only has to listen. Orders that are durable precede orders that are sent: a shell writes an event to the
journal before it performs the actions that follow from it.

What is not here: sockets, processes, and how long anything really takes.
"""

from holdfast.core.job.events import (
    Accept,
    Acknowledge,
    Action,
    AgentDied,
    Bequeath,
    EndRequested,
    Event,
    Inherited,
    MasterStarted,
    NodeRegistered,
    Refuse,
    StatusReported,
    Tale,
    Tell,
    TimePassed,
    Will,
    changes_nothing,
)
from holdfast.core.job.machine import Job
from holdfast.core.job.state import Member, Phase

__all__ = [
    "Accept",
    "Acknowledge",
    "Action",
    "AgentDied",
    "Bequeath",
    "EndRequested",
    "Event",
    "Inherited",
    "Job",
    "MasterStarted",
    "Member",
    "NodeRegistered",
    "Phase",
    "Refuse",
    "StatusReported",
    "Tale",
    "Tell",
    "TimePassed",
    "Will",
    "changes_nothing",
]
