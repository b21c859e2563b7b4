"""Asks the brokers of a SparkJob's cluster which topics wait for a job."""

import asyncio
import datetime
from typing import Any, Final

import msgspec

from magnetar.documents.due_jobs import DueJobs
from magnetar_operator.admin.access import ClusterKey
from magnetar_operator.admin.client import AdminClients, AdminError, Purpose
from magnetar_operator.sparkjobs.desired import Job
from magnetar_operator.sparkjobs.threshold import Demand

PATH: Final = "/admin/v2/magnetar/jobs"
TIMEOUT_S: Final = 15.0


async def demand_for(clients: AdminClients, job: Job, now: datetime.datetime) -> Demand | None:
    """The topics that wait; None if the SparkJob's runs do not depend on them."""
    place = job.place
    if job.spec.on_threshold is None or place is None or job.spec.suspend:
        return None
    if place.token_secret and place.namespace != job.namespace:
        return None  # such a SparkJob is refused: it must not learn a closed cluster's topics
    client = clients.at(place.admin_url, Purpose.JOBS, ClusterKey(place.namespace, place.name))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer: Any = await client.get(PATH)
        return Demand(now, msgspec.convert(answer, DueJobs))
    except (AdminError, TimeoutError, msgspec.ValidationError) as error:
        text = str(error) or "the brokers did not answer in time"
        return Demand(now, unknown=f"topics that wait for a job are not known: {text}")
