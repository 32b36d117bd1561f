"""A queue as rows: owners, jobs and instances without sockets, moved by the real transactions."""

from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.ids import new_id
from services.registry.database import Database
from services.registry.lifecycle import RunEvent, RunState, Stage
from services.registry.records.changes import change_run, lock_run
from services.registry.records.claims import Rules, claim_all
from services.registry.records.instances import register
from services.registry.records.owners import create_owner
from services.registry.records.queues import describe_job
from services.registry.records.submissions import Draft, create_jobs
from services.registry.resolution import Resolution
from services.registry.schema import JobRow, OwnerRow, RunRow

RESOLUTION = Resolution(
    prompt="a boat",
    mode="T2VA",
    height=128,
    width=128,
    frames=124,
    evaluations=3,
    checkpoint_digest="",
    off_distribution=False,
    seed=None,
)
NO_LIMITS = Rules(encoded_ahead=1000)


def draft(owner_id: str, resolution: Resolution = RESOLUTION, request_id: str = "") -> Draft:
    """What CreateJob makes of a request."""
    request = jobs_pb2.CreateJobRequest(request_id=request_id)
    request.spec.prompt = resolution.prompt
    return Draft(owner_id, resolution, 1, 2, request)


def create_job(session: Session, owner_id: str, resolution: Resolution = RESOLUTION) -> JobRow:
    """A job, whatever the limits are."""
    (message,) = create_jobs(session, [draft(owner_id, resolution)])
    return session.get_one(JobRow, message.job_id)


class Queue:
    """Owners, jobs and instances as rows, moved by the real transactions."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.names: set[str] = set()

    def instance(self, instance_id: str, stage: Stage, slots: int = 1) -> None:
        """A registered instance."""
        capabilities = stage_pb2.Capabilities(stage=f"STAGE_{stage}", slots=slots)
        instance = stage_pb2.Instance(
            instance_id=instance_id,
            endpoint="127.0.0.1:1",
            boot_id=new_id("boot"),
            journal_id=new_id("jrn"),
            capabilities=capabilities,
        )
        self.database.transact(lambda session: register(session, instance, stage))
        self.names.add(instance_id)

    def owner(self, name: str, **limits: float) -> str:
        """An owner's id."""

        def make(session: Session) -> str:
            owner = create_owner(session, name, admin=False)
            for key, value in limits.items():
                setattr(owner, key, value)
            return owner.owner_id

        return self.database.transact(make)[0]

    def jobs(self, owner_id: str, count: int, priority: int = 0) -> list[str]:
        """Jobs in order."""
        wanted = Resolution(**{**RESOLUTION.__dict__, "priority": priority})
        return [
            self.database.transact(lambda session: create_job(session, owner_id, wanted).job_id)[0]
            for _ in range(count)
        ]

    def claim(self, stage: Stage, rules: Rules = NO_LIMITS, most: int = 16) -> list[str]:
        """Ids of the jobs that were bound, in order."""

        def work(session: Session) -> list[str]:
            bound = claim_all(session, stage, self.names, self.names, rules, most)
            return [session.get_one(RunRow, run_id).job_id for run_id in bound]

        return self.database.transact(work)[0]

    def end(self, job_id: str, event: RunEvent = RunEvent.REPORTED_SUCCEEDED) -> None:
        """The job's live run ends."""

        def work(session: Session) -> None:
            live = select(RunRow).where(
                col(RunRow.job_id) == job_id, col(RunRow.state) == RunState.BOUND
            )
            run = session.exec(live).one()
            run.output_bundle_id, run.output_kept = new_id("bun"), True
            session.add(run)
            session.flush()
            locked = lock_run(session, run.run_id)
            assert locked is not None
            change_run(session, *locked, event)

        self.database.transact(work)

    def place(self, job_id: str) -> int:
        """Its place as it is told."""
        return self.database.inspect(
            lambda session: describe_job(session, session.get_one(JobRow, job_id))
        ).queue_position

    def times(self) -> dict[str, float]:
        """Virtual times by owner."""
        rows = self.database.inspect(lambda session: list(session.exec(select(OwnerRow))))
        return {row.owner_id: row.virtual_time_s for row in rows}
