"""Commands of operators, with an admin's key: instances, verdicts, owners, keys, quotas."""

from enum import StrEnum
from typing import Annotated

import typer

from reelmesh.v1 import instances_pb2, owners_pb2
from services.cli import exits
from services.cli.display import instances_table, keys_table, owners_table
from services.cli.operator import Operator
from services.cli.options import Home, client_of, console
from services.common.rpc.errors import MeshError, Reason

app = typer.Typer()
keys = typer.Typer(no_args_is_help=True, help="Make and end API keys. Needs an admin's key.")
app.add_typer(keys, name="keys")

InstanceId = Annotated[str, typer.Argument(help="The instance's id, for example sampler-1")]
OwnerName = Annotated[str, typer.Argument(help="The owner's id or name")]
Note = Annotated[str, typer.Option(help="Why, for the record.")]


class Verdict(StrEnum):
    """What an operator knows of a run in doubt."""

    NEVER_RAN = "never-ran"
    FAILED = "failed"
    KEEP_WAITING = "keep-waiting"


_VERDICTS = {
    Verdict.NEVER_RAN: instances_pb2.VERDICT_NEVER_RAN,
    Verdict.FAILED: instances_pb2.VERDICT_FAILED,
    Verdict.KEEP_WAITING: instances_pb2.VERDICT_KEEP_WAITING,
}


@app.command()
def instances(home: Home = None) -> None:
    """List the stage services that the registry knows. Needs an admin's key.

    Example: reelmesh instances
    """

    async def work() -> None:
        async with client_of(home) as client:
            console.print(instances_table(list(await client.operator.list_instances())))

    exits.run(work())


@app.command()
def drain(instance_id: InstanceId, home: Home = None) -> None:
    """Give an instance no new runs; it exits when its run is done and its bundles are copied.

    Example: reelmesh drain sampler-1
    """

    async def work() -> None:
        async with client_of(home) as client:
            console.print(instances_table([await client.operator.drain(instance_id)]))

    exits.run(work())


@app.command()
def remove(
    instance_id: InstanceId,
    note: Note = "",
    yes: Annotated[bool, typer.Option("--yes", help="The host is off; do not ask.")] = False,
    home: Home = None,
) -> None:
    """Confirm that an instance's host is off: its runs are lost and can be resumed.

    Example: reelmesh remove sampler-2 --note "the card died" --yes
    """
    if not yes:
        typer.confirm(f"Is {instance_id} certainly off? What still runs there is lost", abort=True)

    async def work() -> None:
        async with client_of(home) as client:
            console.print(instances_table([await client.operator.remove(instance_id, note)]))

    exits.run(work())


@app.command()
def resolve(
    run_id: Annotated[str, typer.Argument(help="The run in doubt, run_…")],
    verdict: Annotated[Verdict, typer.Argument(help="What you know of it.")],
    note: Note = "",
    home: Home = None,
) -> None:
    """Rule on a run that is UNKNOWN: it never ran, it failed, or keep waiting.

    Example: reelmesh resolve run_0123456789abcdef0123456789abcdef failed --note "host on fire"
    """

    async def work() -> None:
        async with client_of(home) as client:
            ruled = await client.operator.resolve_run(run_id, _VERDICTS[verdict], note)
            console.print(f"job {ruled.job_id}: reelmesh show {ruled.job_id}")

    exits.run(work())


@app.command()
def owners(
    create: Annotated[str, typer.Option(help="Make an owner of this name first.")] = "",
    admin: Annotated[bool, typer.Option("--admin", help="With --create: an admin.")] = False,
    home: Home = None,
) -> None:
    """List the owners with their limits, or make one. Needs an admin's key.

    Example: reelmesh owners --create ada
    """

    async def work() -> None:
        async with client_of(home) as client:
            if create:
                await client.operator.create_owner(create, admin=admin)
            console.print(owners_table(list(await client.operator.list_owners())))

    exits.run(work())


@app.command()
def quota(
    owner: OwnerName,
    running: Annotated[int | None, typer.Option(help="Jobs on a sampler at once; -1: any.")] = None,
    waiting: Annotated[int | None, typer.Option(help="Jobs that wait; -1: any.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share beside others', 0.01 to 100.")] = None,
    home: Home = None,
) -> None:
    """Show or set an owner's limits; what is left out stays. Needs an admin's key.

    Example: reelmesh quota ada --running 2 --waiting 5
    """

    async def work() -> None:
        async with client_of(home) as client:
            found = await _find_owner(client.operator, owner)
            wanted = owners_pb2.Quota()
            wanted.CopyFrom(found.quota)
            if running is not None:
                wanted.max_running = running
            if waiting is not None:
                wanted.max_waiting = waiting
            if weight is not None:
                wanted.weight = weight
            if wanted != found.quota:
                found = await client.operator.set_quota(found.owner_id, wanted)
            console.print(owners_table([found]))

    exits.run(work())


@keys.command("create")
def create_key(
    owner: OwnerName,
    label: Annotated[str, typer.Option(help="A name for it.")] = "",
    home: Home = None,
) -> None:
    """Make a key and print its secret, which is shown only now.

    Example: reelmesh keys create ada --label laptop
    """

    async def work() -> None:
        async with client_of(home) as client:
            found = await _find_owner(client.operator, owner)
            made = await client.operator.create_key(found.owner_id, label)
            typer.echo(f"{made.key.key_id}: REELMESH_KEY for {found.name}, shown once:", err=True)
            print(made.secret)

    exits.run(work())


@keys.command("list")
def list_keys(owner: OwnerName, home: Home = None) -> None:
    """List an owner's keys without their secrets.

    Example: reelmesh keys list ada
    """

    async def work() -> None:
        async with client_of(home) as client:
            found = await _find_owner(client.operator, owner)
            console.print(keys_table(list(await client.operator.list_keys(found.owner_id))))

    exits.run(work())


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, key_…")], home: Home = None
) -> None:
    """End a key at once.

    Example: reelmesh keys revoke key_0123456789abcdef0123456789abcdef
    """

    async def work() -> None:
        async with client_of(home) as client:
            await client.operator.revoke_key(key_id)
            console.print(f"{key_id} is ended")

    exits.run(work())


async def _find_owner(operator: Operator, wanted: str) -> owners_pb2.Owner:
    for owner in await operator.list_owners():
        if wanted in (owner.owner_id, owner.name):
            return owner
    raise MeshError(Reason.OWNER_NOT_FOUND, f"no owner has the id or name {wanted!r}")
