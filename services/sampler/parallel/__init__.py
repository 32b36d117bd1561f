"""One model over several ranks: Ulysses by xfuser, tensor parallelism and FSDP."""
