"""What a traced program consists of besides its ops: modules, shared memory, collectives, seeds."""
