"""The whole mesh with its registry on PostgreSQL, once."""

from pathlib import Path

from reelmesh.v1 import jobs_pb2
from tests.mesh.harness import finish, spec, start_mesh
from tests.postgres import Server


async def test_a_prompt_becomes_an_mp4_with_the_registry_on_postgresql(
    tiny_checkpoint: Path, tmp_path: Path, postgres: Server
) -> None:
    """As on SQLite; the password is in no log."""
    name = postgres.create()
    url = postgres.url(name)
    mesh = start_mesh(tmp_path / "mesh", tiny_checkpoint, REELMESH_REGISTRY_DATABASE_URL=url)
    try:
        async with mesh.client() as client:
            job = await client.create_job(spec())
            done = await finish(client, job.job_id)
        assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED, done
        assert "secret-word" not in mesh.log("registry")
    finally:
        assert mesh.stop() == 0
        postgres.drop(name)
